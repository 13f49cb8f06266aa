#include "timing/timers/kernel_timer.h"

#include <utility>

#include "core/synchronize.h"
#include "timing/timers/device_tick.h"

namespace convtime {

namespace {

constexpr std::size_t kTickBatch = 64;

}  // namespace

KernelTimer::KernelTimer(Metric metric, cudaStream_t stream, std::vector<int> other_devices,
                         std::function<void()> drain)
    : metric_(metric), other_devices_(std::move(other_devices)), drain_(std::move(drain)) {
  tick_seconds_ =
      device_tick(DeviceClock::kRecords, [&] { return measure_tick(*this, stream, kTickBatch); });
}

void KernelTimer::run(std::span<Callable* const> calls) {
  windows_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    windows_[i].of = calls[i];
    windows_[i].prepare = CuptiSession::now();
    calls[i]->prepare();
    if (isolated_) {
      drain_();
    }
    windows_[i].begin = CuptiSession::now();
    calls[i]->call();
    windows_[i].end = CuptiSession::now();
    calls[i]->discard_result();
    if (isolated_) {
      drain_();
    }
  }
}

void KernelTimer::collect(std::span<double> seconds) {
  synchronize(other_devices_);  // not only the stream: a call may use others
  Attribution attribution = session_.take(windows_);
  activities_ = std::move(attribution.calls);
  notes_ = {attribution.faults.describe(), attribution.of_other_threads};
  for (const UnrecordedWork& work : attribution.unrecorded) {
    notes_.unrecorded.emplace_back(work.window, CuptiSession::api_name(work.function));
  }
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] = seconds_by(metric_, activities_[i]);
  }
}

std::vector<std::vector<DeviceActivity>> KernelTimer::take_activities() {
  return std::exchange(activities_, {});
}

CollectionNotes KernelTimer::take_notes() { return std::exchange(notes_, {}); }

}  // namespace convtime
