#include "timing/conditions/sleep_hold.h"

#include <cstdint>

#include "timing/device/kernels.h"

namespace convtime {
SleepHold::SleepHold(cudaStream_t stream)
    : stream_(stream), awake_(make_event(cudaEventDisableTiming)) {}

void SleepHold::hold(double seconds) {
  timing_kernels().sleep.launch(1, 1, 0, stream_, static_cast<std::uint64_t>(seconds * 1e9));
  CONVTIME_CUDA_CHECK(cudaEventRecord(awake_.get(), stream_));
}

bool SleepHold::release() noexcept {
  const bool asleep = cudaEventQuery(awake_.get()) == cudaErrorNotReady;
  (void)cudaGetLastError();  // "not ready" is not an error: the next check must not find it
  return asleep;
}

}  // namespace convtime
