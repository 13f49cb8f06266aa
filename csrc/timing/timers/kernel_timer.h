#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "core/export.h"
#include "timing/timers/timer.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_session.h"

namespace convtime {

/// Measures the device's own time for the kernels, copies and memsets of a call, from CUPTI's
/// activity records: without launch latency or overhead of the timing itself.
class CONVTIME_API KernelTimer final : public Timer {
 public:
  /// For calls that use the current device and `other_devices`. `drain` returns when all of these
  /// devices are idle. Throws std::runtime_error if CUPTI cannot be used.
  KernelTimer(Metric metric, cudaStream_t stream, std::vector<int> other_devices,
              std::function<void()> drain);

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  std::vector<std::vector<DeviceActivity>> take_activities() override;
  CollectionNotes take_notes() override;
  void pause() override { session_.pause(); }
  void resume() override { session_.resume(); }
  double tick_seconds() const override { return tick_seconds_; }
  void isolate() override { isolated_ = true; }
  bool queues_calls() const override { return true; }

 private:
  Metric metric_;
  std::vector<int> other_devices_;
  std::function<void()> drain_;
  bool isolated_ = false;
  CuptiSession session_;
  double tick_seconds_ = 0;
  std::vector<Window> windows_;
  std::vector<std::vector<DeviceActivity>> activities_;
  CollectionNotes notes_;
};

}  // namespace convtime
