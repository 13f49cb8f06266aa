#pragma once

#include <vector>

#include "core/export.h"
#include "timing/cupti_session.h"
#include "timing/timer.h"

namespace convtime {

/// The device's own time for the kernels, copies and memsets that a call issues, from CUPTI's
/// activity records: without launch latency, gaps or what the timing itself costs.
class CONVTIME_API KernelTimer final : public Timer {
 public:
  /// Throws std::runtime_error where CUPTI cannot be used.
  KernelTimer() = default;

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  std::vector<std::vector<DeviceActivity>> take_activities() override;
  bool queues_calls() const override { return true; }

 private:
  CuptiSession session_;
  std::vector<Window> windows_;
  std::vector<std::vector<DeviceActivity>> activities_;
};

}  // namespace convtime
