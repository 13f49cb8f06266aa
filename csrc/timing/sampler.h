#pragma once

#include <functional>
#include <span>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/queue_hold.h"
#include "timing/conditions/regime.h"
#include "timing/host_hooks.h"
#include "timing/judge/stop_rule.h"
#include "timing/samples.h"
#include "timing/supervision.h"
#include "timing/timers/timer.h"

namespace convtime {

/// How to sample. All objects must outlive the run.
struct SamplerSetup {
  Timer& timer;
  QueueHold* hold = nullptr;  ///< if null, the queue is never held
  /// If null, clocks are unknown. Candidates stamp the probe themselves (ClockedCallable).
  ClockProbe* probe = nullptr;
  RegimeControl* regime = nullptr;  ///< if null, the device is sampled in its present state
  Warmup warmup{};
  StopRule rule{};
  HostHooks hooks{};
  /// Called after each candidate's first calls, and when the queue is no longer held, with whether
  /// it is. Returns the timer's overhead per sample, which the rule subtracts; none if empty.
  std::function<Overhead(bool)> calibrate{};
  Supervision supervision{};
};

/// Sample candidates in rounds. Each round calls every candidate once, in a random order, so that
/// drift (clocks, temperature, caches) affects all candidates equally. Exceptions of a candidate,
/// of the timer or of the hooks propagate; the queue is released.
///
/// `earlier` are calls of the same candidates with another method: they count as warm-up, and their
/// first calls are the candidates' first calls. If TraceLost ends the run, its calls are added to
/// `earlier`.
CONVTIME_API SamplerResult sample_rounds(std::span<Callable* const> candidates,
                                         const SamplerSetup& setup, EarlierCalls& earlier);
CONVTIME_API SamplerResult sample_rounds(std::span<Callable* const> candidates,
                                         const SamplerSetup& setup);

}  // namespace convtime
