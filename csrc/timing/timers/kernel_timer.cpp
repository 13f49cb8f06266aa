#include "timing/timers/kernel_timer.h"

#include <utility>

#include "core/synchronize.h"

namespace convtime {

void KernelTimer::run(std::span<Callable* const> calls) {
  windows_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i]->prepare();
    windows_[i].begin = CuptiSession::now();
    calls[i]->call();
    windows_[i].end = CuptiSession::now();
    calls[i]->discard_result();
  }
}

void KernelTimer::collect(std::span<double> seconds) {
  synchronize(other_devices_);  // not the stream: a call may use others
  TraceRecords records = session_.take();
  activities_ = attribute(windows_, records.api_calls, std::move(records.activities));
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] = busy_seconds(activities_[i]);
  }
}

std::vector<std::vector<DeviceActivity>> KernelTimer::take_activities() {
  return std::exchange(activities_, {});
}

}  // namespace convtime
