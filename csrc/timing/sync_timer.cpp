#include "timing/sync_timer.h"

#include <algorithm>

#include "core/cuda_check.h"
#include "timing/clock.h"

namespace convtime {

void SyncTimer::run(std::span<Callable* const> calls) {
  seconds_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
    const double start = now_seconds();
    calls[i]->call();
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
    seconds_[i] = now_seconds() - start;
    calls[i]->discard_result();
  }
}

void SyncTimer::collect(std::span<double> seconds) {
  std::copy(seconds_.begin(), seconds_.end(), seconds.begin());
}

}  // namespace convtime
