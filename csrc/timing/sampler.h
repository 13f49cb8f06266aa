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
#include "timing/conditions/warmup.h"
#include "timing/host_hooks.h"
#include "timing/judge/overhead.h"
#include "timing/judge/stop_rule.h"
#include "timing/samples.h"
#include "timing/supervision.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Samples candidates in rounds. Each round calls every candidate once, in a random order, so that
/// whatever drifts (clocks, temperature, caches) drifts for all of them alike.
class CONVTIME_API Sampler {
 public:
  /// The most calls that one Timer::run() is given for `candidates` candidates.
  static std::size_t max_batch(std::size_t candidates);

  /// `hold` may be null: the queue is then never held. `probe` may be null: clocks are then not
  /// known. Candidates stamp the probe themselves (ClockedCallable). `regime` may be null: the
  /// device is then sampled as it is. `calibrate` is asked once, after each candidate's first
  /// calls, what the timer adds to each sample: the rule judges samples less that. Where it is
  /// empty, the timer adds nothing.
  Sampler(Timer& timer, QueueHold* hold, ClockProbe* probe, Warmup warmup, StopRule rule,
          HostHooks hooks = {}, RegimeControl* regime = nullptr,
          std::function<Overhead(bool)> calibrate = {});
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Of later runs; they are not supervised unless this is called.
  void supervise(Supervision supervision) { supervision_ = std::move(supervision); }

  /// Exceptions of a candidate, of the timer or of the hooks pass through; nothing stays held.
  /// `earlier` are calls of the same candidates by another method: they count as warm-up, and their
  /// first calls are the candidates'. Where TraceLost ends the run, its own calls are added to
  /// them.
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
