#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/queue_hold.h"
#include "timing/conditions/regime.h"
#include "timing/options.h"
#include "timing/timers/timer.h"

namespace convtime {

// What a sampler works with, made as options say.

/// A timer of that method, for batches of so many candidates. Throws std::invalid_argument where
/// the options do not allow the method, and std::runtime_error where it cannot be had.
std::unique_ptr<Timer> make_timer(Method method, const TimingOptions& options,
                                  std::size_t candidates);

/// Null where the queue is not to be held, or the timer queues no calls.
std::unique_ptr<QueueHold> make_hold(const TimingOptions& options, const Timer& timer);

/// Null for work on the CPU.
std::unique_ptr<ClockProbe> make_clock_probe(const TimingOptions& options, std::size_t candidates,
                                             const Timer& timer);

/// What brings a GPU into the regime asked for, `max_clock_hz` being its highest clock; null where
/// that is Regime::kAsIs, for work on the CPU, and for Regime::kAuto with Method::kCpu, whose times
/// are the host's.
std::unique_ptr<RegimeControl> make_regime(const TimingOptions& options, Method method,
                                           double max_clock_hz);

/// The steps of a device's clocks in seconds; NaN for a clock that cannot be read.
struct DeviceTicks {
  double globaltimer;
  double events;
  double records;
};

/// Of the current device: measured once in a process, on the options' stream.
CONVTIME_API DeviceTicks device_ticks(const TimingOptions& options);

/// Candidates with what is done before each call of them. `probe` may be null.
class ConditionedCandidates {
 public:
  ConditionedCandidates(std::span<Callable* const> candidates, const TimingOptions& options,
                        Method method, ClockProbe* probe);

  std::span<Callable* const> get() const { return callables_; }

 private:
  Callable* add(std::unique_ptr<Callable> callable);

  std::vector<Callable*> callables_;
  std::vector<std::unique_ptr<Callable>> owned_;
};

}  // namespace convtime
