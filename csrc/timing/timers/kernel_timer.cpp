#include "timing/timers/kernel_timer.h"

#include <utility>

#include "core/synchronize.h"

namespace convtime {

void KernelTimer::run(std::span<Callable* const> calls) {
  windows_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    windows_[i].of = calls[i];
    windows_[i].prepare = CuptiSession::now();
    calls[i]->prepare();
    windows_[i].begin = CuptiSession::now();
    calls[i]->call();
    windows_[i].end = CuptiSession::now();
    calls[i]->discard_result();
  }
}

void KernelTimer::collect(std::span<double> seconds) {
  synchronize(other_devices_);  // not the stream: a call may use others
  Attribution attribution = session_.take(windows_);
  activities_ = std::move(attribution.calls);
  notes_ = {attribution.faults.describe(), attribution.of_other_threads};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] = busy_seconds(activities_[i]);
  }
}

std::vector<std::vector<DeviceActivity>> KernelTimer::take_activities() {
  return std::exchange(activities_, {});
}

CollectionNotes KernelTimer::take_notes() { return std::exchange(notes_, {}); }

}  // namespace convtime
