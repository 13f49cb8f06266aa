#include "timing/cpu_timer.h"

#include <algorithm>

#include "timing/clock.h"

namespace convtime {

void CpuTimer::run(std::span<Callable* const> calls) {
  seconds_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const double start = now_seconds();
    calls[i]->call();
    seconds_[i] = now_seconds() - start;
    calls[i]->discard_result();
  }
}

void CpuTimer::collect(std::span<double> seconds) {
  std::copy(seconds_.begin(), seconds_.end(), seconds.begin());
}

}  // namespace convtime
