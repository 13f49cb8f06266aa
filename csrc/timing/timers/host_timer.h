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

/// Times calls by the host's clock, one at a time. Each call finds the device idle.
class CONVTIME_API HostTimer final : public Timer {
 public:
  enum class Until {
    kReturn,  ///< the call's return: what issuing work to a GPU costs the host
    kIdle,    ///< the device is idle: with launch latency, all streams and the synchronization
  };

  /// `drain` waits until the device has done all work that was issued to it, and returns when it
  /// had, in now_nanoseconds(); on a CPU it does not wait.
  HostTimer(Until until, std::function<std::int64_t()> drain)
      : until_(until), drain_(std::move(drain)) {}

  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t /*calls*/) override { return std::exchange(collected_, {}); }
  double tick_seconds() const override { return host_clock_tick(); }
  bool queues_calls() const override { return false; }

 private:
  Until until_;
  std::function<std::int64_t()> drain_;
  Collection collected_;
};

/// From before a call on the CPU to its return, which is its duration. Calls that are too short for
/// the clock are made several times for each sample. What the operating system did meanwhile is
/// read, outside of what is timed: for a long call by itself, for short ones together.
class CONVTIME_API CpuWorkTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t /*calls*/) override { return std::exchange(collected_, {}); }
  double tick_seconds() const override { return tick_; }
  bool queues_calls() const override { return false; }
  std::size_t settle(std::span<Callable* const> candidates) override;
  std::size_t repeats(const Callable& candidate) const override;
  const HostRecord* host_record() override;
  std::vector<int> used_cores() override { return probe_.used_cores(); }

 private:
  struct Known {
    double fastest_seconds;  ///< of a call
    std::size_t repeats = 1;
  };

  double time_one(Callable& callable) const;
  void run_one(Callable& callable);
  void end_reading();
  double usual_seconds(Callable& candidate);

  double tick_ = host_clock_tick();
  Collection collected_;
  std::unordered_map<const Callable*, Known> known_;
  HostProbe probe_;
  HostRecord record_;
  std::optional<double> reading_began_;  ///< when, if there is one
  std::size_t samples_of_reading_ = 0;
};

}  // namespace convtime
