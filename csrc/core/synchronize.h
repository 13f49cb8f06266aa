#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "core/cuda_check.h"
#include "core/current_device.h"

namespace convtime {

/// Waits until the current device and `others` are idle.
inline void synchronize(std::span<const int> others) {
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  for (const int device : others) {
    const CurrentDevice current(device);
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

}  // namespace convtime
