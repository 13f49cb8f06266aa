#include "timing/cache_flush.h"

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"

namespace convtime {

std::size_t flush_buffer_bytes() {
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  int l2_bytes = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
  return 4 * static_cast<std::size_t>(l2_bytes);
}

void ColdCallable::prepare() {
  callable_.prepare();
  CONVTIME_CUDA_CHECK(
      cudaMemsetAsync(buffer_.data, 0, buffer_.bytes, static_cast<cudaStream_t>(stream_)));
}

}  // namespace convtime
