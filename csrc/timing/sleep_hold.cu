#include <cstdint>

#include "timing/sleep_hold.h"

namespace convtime {
namespace {

__device__ std::uint64_t globaltimer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void sleep_kernel(std::uint64_t duration_ns) {
  const std::uint64_t start = globaltimer_ns();
  while (globaltimer_ns() - start < duration_ns) {
    __nanosleep(100);
  }
}

}  // namespace

SleepHold::SleepHold(cudaStream_t stream)
    : stream_(stream), awake_(make_event(cudaEventDisableTiming)) {}

void SleepHold::hold(double seconds) {
  sleep_kernel<<<1, 1, 0, stream_>>>(static_cast<std::uint64_t>(seconds * 1e9));
  CONVTIME_CUDA_CHECK(cudaGetLastError());
  CONVTIME_CUDA_CHECK(cudaEventRecord(awake_.get(), stream_));
}

bool SleepHold::released() const {
  const cudaError_t status = cudaEventQuery(awake_.get());
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error: the next check must not find it
    return false;
  }
  CONVTIME_CUDA_CHECK(status);
  return true;
}

}  // namespace convtime
