#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "core/cuda_check.h"
#include "core/current_device.h"

namespace convtime {

/// Waits until the current device and `others` are idle.
inline void synchronize(std::span<const int> others) {
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  if (others.empty()) {
    return;
  }
  const int current = current_device();
  for (const int device : others) {
    CONVTIME_CUDA_CHECK(cudaSetDevice(device));
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  }
  CONVTIME_CUDA_CHECK(cudaSetDevice(current));
}

}  // namespace convtime
