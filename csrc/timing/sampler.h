#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/queue_hold.h"
#include "timing/stop_rule.h"
#include "timing/timer.h"

namespace convtime {

/// Untimed calls of each candidate before sampling: at least `calls`, for at least `seconds`.
struct Warmup {
  std::size_t calls = 3;
  double seconds = 0.02;
};

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
  /// What the device did for each of `seconds`, [candidate][round]; empty where the timer cannot
  /// say.
  std::vector<std::vector<std::vector<DeviceActivity>>> activities;
  /// Samples that were taken while the queue could not be held, and that are not in `seconds`.
  std::vector<std::vector<double>> discarded;
  bool queue_held = false;
  std::string queue_reason;  ///< why the queue was not held; empty where it was
  std::size_t warmup_calls = 0;
  double warmup_seconds = 0;
  double sampling_seconds = 0;
  StopReason stop_reason = StopReason::kNotYet;
};

/// Samples candidates in rounds. Each round calls every candidate once, in a random order, so that
/// whatever drifts (clocks, temperature, caches) drifts for all of them alike.
class CONVTIME_API Sampler {
 public:
  /// The most calls that one Timer::run() is given for `candidates` candidates.
  static std::size_t max_batch(std::size_t candidates);

  /// `hold` may be null: the queue is then never held.
  Sampler(Timer& timer, QueueHold* hold, Warmup warmup, StopRule rule, HostHooks hooks = {});

  /// Exceptions of a candidate, of the timer or of the hooks pass through; nothing stays held.
  SamplerResult run(std::span<Callable* const> candidates);

 private:
  struct Cost {
    double host_seconds = 0;  ///< of issuing one round
    double wall_seconds = 0;  ///< of issuing one round and waiting for it
  };

  Cost warm_up(std::span<Callable* const> candidates, SamplerResult& result);
  std::size_t rounds_in_batch(const Cost& cost, const SamplerResult& result, double elapsed,
                              std::size_t limit) const;

  Timer& timer_;
  QueueHold* hold_;
  Warmup warmup_;
  StopRule rule_;
  HostHooks hooks_;
};

}  // namespace convtime
