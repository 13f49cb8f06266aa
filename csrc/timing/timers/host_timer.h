#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "core/export.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Times calls by the host's clock, one at a time.
class CONVTIME_API HostTimer : public Timer {
 public:
  /// `drain` returns when the device has done all that was issued to it; on a CPU it does nothing.
  explicit HostTimer(std::function<void()> drain) : drain_(std::move(drain)) {}

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return false; }

 protected:
  void drain() const { drain_(); }

 private:
  /// Seconds of one call, which finds the device idle.
  virtual double time_one(Callable& callable) const = 0;

  std::function<void()> drain_;
  std::vector<double> seconds_;
};

/// From before a call to its return. For work on the CPU this is its duration; for work on a GPU it
/// is what issuing the call costs the host.
class CONVTIME_API CpuTimer final : public HostTimer {
 public:
  using HostTimer::HostTimer;

 private:
  double time_one(Callable& callable) const override;
};

/// From before a call until the device is idle again: launch latency, all streams and the
/// synchronisation included.
class CONVTIME_API SyncTimer final : public HostTimer {
 public:
  using HostTimer::HostTimer;

 private:
  double time_one(Callable& callable) const override;
};

}  // namespace convtime
