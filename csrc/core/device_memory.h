#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/cuda_check.h"
#include "core/unique_handle.h"

namespace convtime {

template <typename T>
struct DeviceMemoryTraits {
  using Handle = T*;
  static void release(T* data) noexcept { CONVTIME_CUDA_WARN(cudaFree(data)); }
};

/// Memory of the device, outside of any allocator's cache.
template <typename T>
using DeviceMemory = UniqueHandle<DeviceMemoryTraits<T>>;

/// Of the current device, with room for `count` values.
template <typename T>
DeviceMemory<T> make_device_memory(std::size_t count) {
  void* data = nullptr;
  CONVTIME_CUDA_CHECK(cudaMalloc(&data, count * sizeof(T)));
  return DeviceMemory<T>(static_cast<T*>(data));
}

}  // namespace convtime
