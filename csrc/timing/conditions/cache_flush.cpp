#include "timing/conditions/cache_flush.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "core/cuda.h"
#include "core/synchronize.h"
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

constexpr cudaLimit kLimit = cudaLimitPersistingL2CacheSize;

/// Return whether the device is idle, or nearly: a timing that reached its end has waited for it.
bool is_idle(int device) {
  constexpr double kPatienceSeconds = 0.05;
  try {
    const CurrentDevice current(device);
    return synchronize_within({}, kPatienceSeconds);
  } catch (const CudaError&) {
    return true;  // the error occurs again later, and is reported then
  }
}

std::string described(cudaError_t status) {
  (void)cudaGetLastError();  // otherwise an unrelated later call would report it
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
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

WithoutPersistingL2::WithoutPersistingL2(int device) : device_(device) {
  const CurrentDevice current(device);
  const std::string cache = " of the L2 cache of cuda:" + std::to_string(device);
  std::size_t bytes = 0;
  cudaError_t status = cudaDeviceGetLimit(&bytes, kLimit);
  if (status == cudaErrorUnsupportedLimit) {  // on GPUs without persisting accesses
    (void)cudaGetLastError();
    return;
  }
  if (status != cudaSuccess) {
    reason_ = "the size of the persisting part" + cache +
              ", where lines outlast a flush, is unknown (" + described(status) + ")";
    return;
  }
  if (bytes == 0) {
    return;
  }
  status = cudaDeviceSetLimit(kLimit, 0);
  if (status == cudaSuccess) {
    restored_bytes_ = bytes;
    status = cudaCtxResetPersistingL2Cache();  // resets lines that already persist
  }
  if (status != cudaSuccess) {
    reason_ =
        std::to_string(bytes) + " bytes" + cache +
        " are set aside for persisting accesses, where lines outlast a flush, and could not be "
        "released (" +
        described(status) + ")";
  }
}

WithoutPersistingL2::~WithoutPersistingL2() {
  if (restored_bytes_ == 0) {
    return;
  }
  const auto restore = [device = device_, bytes = restored_bytes_] {
    try {
      const CurrentDevice current(device);
      CONVTIME_CUDA_WARN(cudaDeviceSetLimit(kLimit, bytes));
    } catch (const CudaError& error) {
      std::fprintf(stderr, "convtime: %s\n", error.what());
    }
  };
  if (is_idle(device_)) {
    restore();
  } else {
    std::thread(restore).detach();  // the limit can only be set when the device is idle
  }
}

}  // namespace convtime
