#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "core/cuda_check.h"
#include "core/current_device.h"
#include "timing/conditions/cache_flush.h"

namespace convtime {
namespace {

constexpr unsigned kThreads = 256;
/// Words of 16 bytes per thread.
constexpr unsigned kWords = 8;
constexpr std::size_t kBlockBytes = sizeof(uint4) * kThreads * kWords;
constexpr std::uint32_t kUnlikely = 0x9e3779b9;

/// The compiler would remove loads whose results are unused, so a store depends on the loaded
/// values. Zeros never trigger it, and other values do in one of 2^32 threads.
__global__ void read_kernel(const uint4* data, std::size_t words, std::uint32_t* rarely) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads * kWords + threadIdx.x;
  std::uint32_t seen = 0;
#pragma unroll
  for (unsigned i = 0; i < kWords; ++i) {
    const std::size_t word = first + i * kThreads;
    if (word < words) {
      const uint4 value = data[word];
      seen ^= value.x ^ value.y ^ value.z ^ value.w;
    }
  }
  if (seen == kUnlikely) {
    *rarely = seen;
  }
}

void read(const FlushBuffer& buffer, cudaStream_t stream) {
  const std::size_t blocks =
      std::max<std::size_t>(1, (buffer.bytes + kBlockBytes - 1) / kBlockBytes);
  read_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint4*>(buffer.data), buffer.bytes / sizeof(uint4),
      static_cast<std::uint32_t*>(buffer.data));
  CONVTIME_CUDA_CHECK(cudaGetLastError());
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
