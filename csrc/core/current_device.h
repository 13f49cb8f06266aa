#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"

namespace convtime {

inline int current_device() {
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

/// Makes a device current for the lifetime of this object.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : before_(current_device()) {
    CONVTIME_CUDA_CHECK(cudaSetDevice(device));
  }
  ~CurrentDevice() { CONVTIME_CUDA_WARN(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_;
};

}  // namespace convtime
