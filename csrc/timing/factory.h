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

// Creates the parts of a sampler from options.

/// Compile the kernels that measure, for all devices of the calls: later, it would take place while
/// the queue is held.
void load_timing_kernels(const TimingOptions& options);

/// Create a timer for that method, for batches of that many candidates. Throws
/// std::invalid_argument if the options do not allow the method, and std::runtime_error if it is
/// unavailable.
std::unique_ptr<Timer> make_timer(Method method, const TimingOptions& options,
                                  std::size_t candidates);

/// Returns null if the queue must not be held, or if the timer does not queue calls.
std::unique_ptr<QueueHold> make_hold(const TimingOptions& options, const Timer& timer);

/// Returns null for work on the CPU.
std::unique_ptr<ClockProbe> make_clock_probe(const TimingOptions& options, std::size_t candidates,
                                             const Timer& timer);

/// Create the control of the requested regime; `max_clock_hz` is the device's maximum clock.
/// Returns null for Regime::kAsIs, for work on the CPU, and for Regime::kAuto with Method::kCpu,
/// whose times are the host's.
std::unique_ptr<RegimeControl> make_regime(const TimingOptions& options, Method method,
                                           double max_clock_hz);

/// The steps of a device's clocks in seconds; NaN for a clock that is not readable.
struct DeviceTicks {
  double globaltimer;
  double events;
  double records;
};

/// Return the ticks of the current device, measured once per process on the options' stream.
CONVTIME_API DeviceTicks device_ticks(const TimingOptions& options);

/// Wrap the candidates, in place, with the actions before each call, and return the wrappers.
/// `probe` may be null.
std::vector<std::unique_ptr<Callable>> add_conditions(std::span<Callable*> candidates,
                                                      const TimingOptions& options, Method method,
                                                      ClockProbe* probe);

}  // namespace convtime
