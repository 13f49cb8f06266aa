#pragma once

#include <cstddef>

#include "core/enum_names.h"
#include "core/export.h"
#include "timing/judge/estimate.h"
#include "timing/judge/statistics.h"

namespace convtime {

/// The condition that ends sampling.
enum class StopCriterion {
  /// "interval": relative_noise() (estimate.h) of every candidate is at most `tolerance`.
  kInterval,
  /// "noise": relative_stdev() of every candidate is at most `tolerance`, or no longer changes with
  /// more samples (the criterion "stdrel" of NVIDIA's nvbench).
  kNoise,
  /// "entropy": the entropy of every candidate's samples no longer grows with more samples (the
  /// criterion "entropy" of NVIDIA's nvbench).
  kEntropy,
  /// "verdict": judge() (statistics.h) is certain of how every candidate compares with the first. A
  /// single candidate has no comparison: `max_samples` or the budget ends its sampling.
  kVerdict,
  /// "count": until `max_samples`, regardless of the time.
  kCount,
  /// "budget": the budget is spent, or `max_samples` are taken.
  kBudget,
};
constexpr auto names_of(StopCriterion /*all*/) {
  return std::array{"interval", "noise", "entropy", "verdict", "count", "budget"};
}

enum class StopReason {
  kNotYet,
  kSettled,     ///< the criterion is met
  kMaxSamples,  ///< every candidate has max_samples
  kBudget,      ///< the time budget is spent
  kTimeout,     ///< the caller's deadline passed (supervision.h); not returned by a rule
};
constexpr auto names_of(StopReason /*all*/) {
  return std::array{"not yet", "settled", "max_samples", "budget", "timeout"};
}

/// Return whether the criterion compares times with each other or with themselves, so that a
/// method's overhead matters.
CONVTIME_API bool depends_on_overhead(StopCriterion criterion);

/// When to stop sampling. All candidates are sampled equally often, and at least min_samples times:
/// fewer samples are not meaningful.
struct StopRule {
  StopCriterion criterion = StopCriterion::kInterval;
  std::size_t min_samples = 10;
  std::size_t max_samples = 10'000;  ///< an upper limit for every criterion
  double budget_seconds = 1.0;       ///< for sampling, without warm-up; ignored by kCount
  double tolerance = 0.005;          ///< for kInterval and kNoise
  double margin = 0.01;              ///< for kVerdict: ratios this close to 1 are the same
  double doubt = 0;                  ///< for kVerdict: see judge()
  /// The first batch has more than min_samples rounds if as many untimed calls would take less than
  /// this: a batch costs time of its own, which a short run should spend once.
  double first_batch_seconds = 0;

  /// Throws std::invalid_argument if no sampling could satisfy the rule.
  CONVTIME_API void validate() const;

  /// `rounds` are the rounds so far, whose times still include `overhead`; `elapsed_seconds` is the
  /// time spent on them. Only kVerdict uses the overhead's uncertainty and the clock's tick: they
  /// widen the interval of a ratio, and more samples do not reduce them.
  CONVTIME_API StopReason decide(const JudgedRounds& rounds, double elapsed_seconds,
                                 const Overhead& overhead = {}, double tick_seconds = 0) const;

  /// Like decide(), but without checking the criterion.
  CONVTIME_API StopReason decide_by_limits(std::size_t samples, double elapsed_seconds) const;
};

/// Decides like a rule while samples arrive in batches. It checks the criterion only when the
/// number of samples has grown by a quarter since the last check, because checks take longer with
/// more samples.
class CONVTIME_API StopJudge {
 public:
  explicit StopJudge(const StopRule& rule) : rule_(rule) {}

  /// Set the tick of the clock that times the samples.
  void know_tick(double seconds) { tick_seconds_ = seconds; }

  /// Set the doubt of judge(), for the criterion kVerdict.
  void know_doubt(double share) { rule_.doubt = share; }

  /// Set the method's known overhead for all samples from here on.
  void expect(const Overhead& overhead) { overhead_ = overhead; }

  /// Return whether decide() would check the criterion for that many samples.
  bool is_due(std::size_t samples);

  /// See StopRule::decide().
  StopReason decide(const JudgedRounds& rounds, double elapsed_seconds);

 private:
  StopRule rule_;
  double tick_seconds_ = 0;
  Overhead overhead_;
  std::size_t looked_at_ = 0;  ///< samples
};

}  // namespace convtime
