#include "timing/conditions/persisting_l2.h"

#include <cuda_runtime_api.h>

#include <cstdio>

#include "core/cuda_check.h"

namespace convtime {
namespace {

constexpr cudaLimit kLimit = cudaLimitPersistingL2CacheSize;

/// Makes a device the current one for as long as it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    CONVTIME_CUDA_CHECK(cudaGetDevice(&before_));
    CONVTIME_CUDA_CHECK(cudaSetDevice(device));
  }
  ~CurrentDevice() { CONVTIME_CUDA_WARN(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

std::size_t bytes_set_aside() {
  std::size_t bytes = 0;
  const cudaError_t status = cudaDeviceGetLimit(&bytes, kLimit);
  if (status == cudaErrorUnsupportedLimit) {  // by GPUs that can set nothing aside
    (void)cudaGetLastError();
    return 0;
  }
  CONVTIME_CUDA_CHECK(status);
  return bytes;
}

}  // namespace

WithoutPersistingL2::WithoutPersistingL2(int device) : device_(device) {
  const CurrentDevice current(device);
  const std::size_t bytes = bytes_set_aside();
  if (bytes == 0) {
    return;
  }
  told_ = std::to_string(bytes) + " bytes of the L2 cache of cuda:" + std::to_string(device) +
          " are set aside for persisting accesses";
  cudaError_t status = cudaDeviceSetLimit(kLimit, 0);
  if (status == cudaSuccess) {
    restored_bytes_ = bytes;
    status = cudaCtxResetPersistingL2Cache();  // of lines that persist already
  }
  if (status == cudaSuccess) {
    told_ += ", but were not during this timing";
  } else {
    (void)cudaGetLastError();
    told_ += std::string(", where lines outlast a flush, and could not be given back (") +
             cudaGetErrorName(status) + ": " + cudaGetErrorString(status) + ")";
  }
}

WithoutPersistingL2::~WithoutPersistingL2() {
  if (restored_bytes_ == 0) {
    return;
  }
  try {
    const CurrentDevice current(device_);
    CONVTIME_CUDA_WARN(cudaDeviceSetLimit(kLimit, restored_bytes_));
  } catch (const CudaError& error) {
    std::fprintf(stderr, "convtime: %s\n", error.what());
  }
}

}  // namespace convtime
