#pragma once

#include <cstddef>
#include <vector>

#include "timing/judge/stop_rule.h"
#include "timing/samples.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Decides which rounds count, and when there are enough. Rounds that the operating system
/// disturbed do not count, if enough others come in time.
class RoundJudge {
 public:
  /// `decides_alone` is false if other processes, which have other readings, count the same rounds.
  RoundJudge(const StopRule& rule, Timer& timer, bool decides_alone);

  /// Call after the first calls, with the tick of the clock that times the samples.
  void begin(double tick_seconds);
  /// Set the method's known overhead for all samples from here on.
  void expect(const Overhead& overhead) { judge_.expect(overhead); }

  /// See StopRule::decide(). `exhausted` says whether the regime ends the sampling like a spent
  /// budget.
  StopReason decide(const Series& series, double elapsed_seconds, bool exhausted);

  /// Return how many rounds are missing until the last decision can change.
  std::size_t missing_rounds() const;

  /// Discard the rounds that do not count, and describe disturbances.
  void finish(SamplerResult& result);

 private:
  std::vector<std::size_t> undisturbed_rounds(const Series& series);

  const StopRule& rule_;
  Timer& timer_;
  StopJudge judge_;
  bool has_readings_;
  bool leaves_out_disturbed_;
  std::vector<bool> disturbed_;  ///< for each of the timer's readings
  std::size_t counted_ = 0;      ///< rounds, at the last decision
};

}  // namespace convtime
