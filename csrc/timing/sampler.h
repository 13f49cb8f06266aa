#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/queue_hold.h"
#include "timing/conditions/regime.h"
#include "timing/conditions/warmup.h"
#include "timing/judge/stop_rule.h"
#include "timing/timers/timer.h"

namespace convtime {

/// What the sampler owes to the program around it.
struct HostHooks {
  /// Runs something that blocks; a place to let go of locks that other host threads need. What it
  /// runs does not wait through it again.
  std::function<void(const std::function<void()>&)> wait = [](const auto& blocking) { blocking(); };
  /// Called between batches; may throw to end the sampling.
  std::function<void()> poll = [] {};
};

struct SamplerResult {
  /// Seconds, [candidate][round]. Samples with the same round index were taken next to each other.
  std::vector<std::vector<double>> seconds;
  /// The device's clock around each of `seconds` in hertz, NaN where it is not known; without a
  /// clock probe, no values for any candidate.
  std::vector<std::vector<double>> clock_hertz;
  /// What the device did for each of `seconds`, [candidate][round]; no rounds where the timer
  /// cannot say.
  std::vector<std::vector<std::vector<DeviceActivity>>> activities;
  /// Samples that were taken while the queue could not be held, or the device was not in the regime
  /// asked for, and that are not in `seconds`.
  std::vector<std::vector<double>> discarded;
  bool queue_held = false;
  std::string queue_reason;      ///< why the queue was not held; empty where it was
  std::size_t warmup_calls = 0;  ///< that gave no samples
  double warmup_seconds = 0;     ///< idling included
  /// [candidate]: what its first call took, with all that is done only once (loading, compiling,
  /// choosing algorithms, allocating), until its work was done.
  std::vector<double> first_call_seconds;
  bool steady = false;          ///< whether the warm-up was to become steady, and did
  double sampling_seconds = 0;  ///< after the warm-up, idling not included
  double idle_seconds = 0;      ///< that the device was left idle for the regime's sake, in all
  StopReason stop_reason = StopReason::kNotYet;
};

/// Samples candidates in rounds. Each round calls every candidate once, in a random order, so that
/// whatever drifts (clocks, temperature, caches) drifts for all of them alike.
class CONVTIME_API Sampler {
 public:
  /// The most calls that one Timer::run() is given for `candidates` candidates.
  static std::size_t max_batch(std::size_t candidates);

  /// `hold` may be null: the queue is then never held. `probe` may be null: clocks are then not
  /// known. Candidates stamp the probe themselves (ClockedCallable). `regime` may be null: the
  /// device is then sampled as it is.
  Sampler(Timer& timer, QueueHold* hold, ClockProbe* probe, Warmup warmup, StopRule rule,
          HostHooks hooks = {}, RegimeControl* regime = nullptr);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Exceptions of a candidate, of the timer or of the hooks pass through; nothing stays held.
  SamplerResult run(std::span<Callable* const> candidates);

 private:
  /// What is learnt from batch to batch.
  struct Progress {
    double host_seconds = 0;  ///< of issuing one round
    double wall_seconds = 0;  ///< of issuing one round and waiting for it
    QueueHold* hold = nullptr;
    std::string queue_reason;
    std::size_t round_limit = 0;  ///< of a batch
    std::size_t load_calls = 0;   ///< that the regime asked for, and that gave no samples
    std::mt19937 random;
  };

  void call_untimed(std::span<Callable* const> candidates, SamplerResult& result,
                    Progress& progress);
  bool become_steady(std::span<Callable* const> candidates, SamplerResult& result,
                     Progress& progress);
  std::size_t affordable_rounds(const Progress& progress, double seconds_left) const;
  double working_clock() const;
  double idle();
  void load(std::span<Callable* const> candidates, double seconds, Progress& progress);
  void run_batch(std::span<Callable* const> candidates, std::size_t rounds, SamplerResult& result,
                 Progress& progress);
  void learn_from_release(bool held, double hold_seconds, double issue_seconds, std::size_t rounds,
                          SamplerResult& result, Progress& progress) const;

  Timer& timer_;
  QueueHold* hold_;
  ClockProbe* probe_;
  RegimeControl as_is_;
  RegimeControl& regime_;
  Warmup warmup_;
  StopRule rule_;
  HostHooks hooks_;
};

}  // namespace convtime
