#include "timing/timers/host_timer.h"

#include <algorithm>

#include "timing/clock.h"

namespace convtime {

void HostTimer::run(std::span<Callable* const> calls) {
  seconds_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i]->prepare();
    // The queue of a busy device fills up, and a full queue would block the call.
    drain();
    seconds_[i] = time_one(*calls[i]);
    calls[i]->discard_result();
  }
  drain();
}

void HostTimer::collect(std::span<double> seconds) {
  std::copy(seconds_.begin(), seconds_.end(), seconds.begin());
}

double CpuTimer::time_one(Callable& callable) const {
  const double start = now_seconds();
  callable.call();
  return now_seconds() - start;
}

double SyncTimer::time_one(Callable& callable) const {
  const double start = now_seconds();
  callable.call();
  drain();
  return now_seconds() - start;
}

}  // namespace convtime
