#pragma once

#include <utility>
#include <vector>

#include "core/export.h"
#include "timing/timers/timer.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_session.h"

namespace convtime {

/// The device's own time for the kernels, copies and memsets that a call issues, from CUPTI's
/// activity records: without launch latency, gaps or what the timing itself costs.
class CONVTIME_API KernelTimer final : public Timer {
 public:
  /// For calls that use the current device and `other_devices`. Throws std::runtime_error where
  /// CUPTI cannot be used.
  explicit KernelTimer(std::vector<int> other_devices) : other_devices_(std::move(other_devices)) {}

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  std::vector<std::vector<DeviceActivity>> take_activities() override;
  CollectionNotes take_notes() override;
  void pause() override { session_.pause(); }
  void resume() override { session_.resume(); }
  double tick_seconds() const override { return kDeviceTickSeconds; }
  bool queues_calls() const override { return true; }

 private:
  std::vector<int> other_devices_;
  CuptiSession session_;
  std::vector<Window> windows_;
  std::vector<std::vector<DeviceActivity>> activities_;
  CollectionNotes notes_;
};

}  // namespace convtime
