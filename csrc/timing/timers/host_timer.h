#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/export.h"
#include "timing/clock.h"
#include "timing/conditions/host_probe.h"
#include "timing/judge/host_reading.h"
#include "timing/timers/timer.h"

namespace convtime {

/// The step of the host's clock, or what reading it takes where that is more: durations are known
/// no better.
CONVTIME_API double host_clock_tick();

/// Times calls by the host's clock, one at a time.
class CONVTIME_API HostTimer : public Timer {
 public:
  /// `drain` waits until the device has done all that was issued to it, and returns when it had, in
  /// now_nanoseconds(); on a CPU it does not wait.
  explicit HostTimer(std::function<std::int64_t()> drain) : drain_(std::move(drain)) {}

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  double tick_seconds() const override { return tick_; }
  bool queues_calls() const override { return false; }

 protected:
  std::int64_t drain() const { return drain_(); }
  double tick_ = host_clock_tick();
  std::vector<double> seconds_;

 private:
  /// Seconds of one call, which finds the device idle.
  virtual double time_one(Callable& callable) const = 0;

  std::function<std::int64_t()> drain_;
};

/// From before a call to its return. For work on a GPU it is what issuing the call costs the host.
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

/// From before a call on the CPU to its return, which is its duration. Calls that are too short for
/// the clock are made several times for each sample. What the operating system did meanwhile is
/// read, outside of what is timed: for a long call by itself, for short ones together.
class CONVTIME_API CpuWorkTimer final : public HostTimer {
 public:
  CpuWorkTimer() : HostTimer(now_nanoseconds) {}

  void run(std::span<Callable* const> calls) override;
  std::size_t settle(std::span<Callable* const> candidates) override;
  std::size_t repeats(const Callable& candidate) const override;
  std::vector<std::size_t> take_readings() override { return std::exchange(reading_of_call_, {}); }
  const HostRecord* host_record() override;
  std::vector<int> used_cores() override { return probe_.used_cores(); }

 private:
  struct Known {
    double fastest_seconds;  ///< of a call
    std::size_t repeats = 1;
  };

  double time_one(Callable& callable) const override;
  void run_one(Callable& callable);
  void end_reading();
  double usual_seconds(Callable& candidate);

  std::unordered_map<const Callable*, Known> known_;
  HostProbe probe_;
  HostRecord record_;
  std::vector<std::size_t> reading_of_call_;  ///< index of each call's reading
  std::optional<double> reading_began_;       ///< when, if there is one
  std::size_t samples_of_reading_ = 0;
};

}  // namespace convtime
