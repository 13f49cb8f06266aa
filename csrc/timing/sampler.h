#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/queue_hold.h"
#include "timing/conditions/regime.h"
#include "timing/host_hooks.h"
#include "timing/judge/statistics.h"
#include "timing/judge/stop_rule.h"
#include "timing/samples.h"
#include "timing/supervision.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Samples candidates in rounds. Each round calls every candidate once, in a random order, so that
/// drift (clocks, temperature, caches) affects all candidates equally.
class CONVTIME_API Sampler {
 public:
  /// Return the maximum number of calls in one Timer::run() for `candidates` candidates.
  static std::size_t max_batch(std::size_t candidates);

  /// If `hold` is null, the queue is never held. If `probe` is null, clocks are unknown. Candidates
  /// stamp the probe themselves (ClockedCallable). If `regime` is null, the device is sampled in
  /// its present state. `calibrate` is called once, after each candidate's first calls, and returns
  /// the timer's overhead per sample, which the rule subtracts. If it is empty, there is no
  /// overhead.
  Sampler(Timer& timer, QueueHold* hold, ClockProbe* probe, Warmup warmup, StopRule rule,
          HostHooks hooks = {}, RegimeControl* regime = nullptr,
          std::function<Overhead(bool)> calibrate = {});
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Supervise later runs; without this call they are not supervised.
  void supervise(Supervision supervision) { supervision_ = std::move(supervision); }

  /// Exceptions of a candidate, of the timer or of the hooks propagate; the queue is released.
  /// `earlier` are calls of the same candidates with another method: they count as warm-up, and
  /// their first calls are the candidates' first calls. If TraceLost ends the run, its calls are
  /// added to `earlier`.
  SamplerResult run(std::span<Callable* const> candidates, EarlierCalls& earlier);
  SamplerResult run(std::span<Callable* const> candidates);

 private:
  class Run;

  Timer& timer_;
  QueueHold* hold_;
  ClockProbe* probe_;
  RegimeControl as_is_;
  RegimeControl& regime_;
  Warmup warmup_;
  StopRule rule_;
  HostHooks hooks_;
  std::function<Overhead(bool)> calibrate_;
  Supervision supervision_;
};

}  // namespace convtime
