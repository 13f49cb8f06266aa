#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"

namespace convtime {

inline int current_device() {
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

}  // namespace convtime
