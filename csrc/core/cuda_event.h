#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"
#include "core/unique_handle.h"

namespace convtime {

struct CudaEventTraits {
  using Handle = cudaEvent_t;
  static void release(cudaEvent_t event) noexcept { CONVTIME_CUDA_WARN(cudaEventDestroy(event)); }
};
using CudaEvent = UniqueHandle<CudaEventTraits>;

inline CudaEvent make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  CONVTIME_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return CudaEvent(event);
}

}  // namespace convtime
