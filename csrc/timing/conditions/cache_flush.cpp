#include "timing/conditions/cache_flush.h"

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"

namespace convtime {

std::size_t flush_buffer_bytes(int device) {
  int l2_bytes = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
  return 4 * static_cast<std::size_t>(l2_bytes);
}

void flush(const FlushBuffer& buffer, void* stream) {
  CONVTIME_CUDA_CHECK(
      cudaMemsetAsync(buffer.data, 0, buffer.bytes, static_cast<cudaStream_t>(stream)));
}

void ColdCallable::prepare() {
  callable_.prepare();
  int current = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&current));
  for (const FlushBuffer& buffer : buffers_) {
    CONVTIME_CUDA_CHECK(cudaSetDevice(buffer.device));
    flush(buffer, buffer.stream);
  }
  CONVTIME_CUDA_CHECK(cudaSetDevice(current));
}

}  // namespace convtime
