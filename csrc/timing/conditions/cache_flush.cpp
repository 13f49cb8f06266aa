#include "timing/conditions/cache_flush.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/cuda.h"
#include "timing/device/kernels.h"
#include "timing/device/parameters.h"

namespace convtime {
namespace {

constexpr std::size_t kBlockBytes = sizeof(uint4) * kReadThreads * kReadWords;

void read(const FlushBuffer& buffer, cudaStream_t stream) {
  const std::size_t blocks =
      std::max<std::size_t>(1, (buffer.bytes + kBlockBytes - 1) / kBlockBytes);
  const std::size_t words = buffer.bytes / sizeof(uint4);
  timing_kernels().read.launch(static_cast<unsigned>(blocks), kReadThreads, 0, stream, buffer.data,
                               words, buffer.data);
}

}  // namespace

std::size_t flush_buffer_bytes(int device, L2Lines leaves) {
  int l2_bytes = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
  return (leaves == L2Lines::kDirty ? 2 : 4) * static_cast<std::size_t>(l2_bytes);
}

void flush(const FlushBuffer& buffer, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (buffer.leaves) {
    case L2Lines::kDirty:
      CONVTIME_CUDA_CHECK(cudaMemsetAsync(buffer.data, 0, buffer.bytes, on));
      return;
    case L2Lines::kClean:
      read(buffer, on);
      return;
  }
}

void ColdCallable::prepare() {
  ForwardingCallable::prepare();
  for (const FlushBuffer& buffer : buffers_) {
    const CurrentDevice current(buffer.device);
    flush(buffer, buffer.stream);
  }
}

}  // namespace convtime
