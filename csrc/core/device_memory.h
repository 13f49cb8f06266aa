#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda.h"
#include "core/device_allocator.h"

namespace convtime {

/// Device memory for `count` values. It is written on only one stream: the current stream of an
/// allocator that is stream-aware.
template <typename T>
class DeviceMemory {
 public:
  DeviceMemory(std::size_t count, const DeviceAllocator& allocate)
      : data_(allocate ? allocate(count * sizeof(T)) : allocate_by_cuda(count * sizeof(T))) {}

  T* get() const { return static_cast<T*>(data_.get()); }

  /// Return the first `count` values, after the stream's earlier work.
  std::vector<T> read(std::size_t count, cudaStream_t stream) const {
    std::vector<T> values(count);
    CONVTIME_CUDA_CHECK(
        cudaMemcpyAsync(values.data(), get(), count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream));
    return values;
  }

 private:
  static std::shared_ptr<void> allocate_by_cuda(std::size_t bytes) {
    void* data = nullptr;
    CONVTIME_CUDA_CHECK(cudaMalloc(&data, bytes));
    return {data, [](void* allocated) { CONVTIME_CUDA_WARN(cudaFree(allocated)); }};
  }

  std::shared_ptr<void> data_;
};

}  // namespace convtime
