#pragma once

#include <cstddef>
#include <string>

#include "core/export.h"
#include "timing/judge/estimate.h"
#include "timing/judge/overhead.h"

namespace convtime {

/// What is to be reached before sampling ends.
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
  /// candidate alone compares with nothing: `max_samples` or the budget ends its sampling.
  kVerdict,
  /// "count": `max_samples` are taken, however long it takes.
  kCount,
  /// "budget": the budget is spent, or `max_samples` are taken.
  kBudget,
};

enum class StopReason {
  kNotYet,
  kSettled,     ///< what the criterion asks for is reached
  kMaxSamples,  ///< every candidate has max_samples
  kBudget,      ///< the time budget is spent
  kTimeout,     ///< the caller's deadline passed (supervision.h); no rule says so
};

/// Whether the criterion sets times against each other or themselves, so that what a method adds to
/// all of them matters.
CONVTIME_API bool depends_on_overhead(StopCriterion criterion);

/// When enough has been sampled. All candidates are sampled equally often, and min_samples times in
/// any case: what is said of fewer says nothing.
struct StopRule {
  StopCriterion criterion = StopCriterion::kInterval;
  std::size_t min_samples = 10;
  std::size_t max_samples = 10'000;  ///< an upper limit whatever the criterion
  double budget_seconds = 1.0;       ///< of sampling; not warm-up; not looked at by kCount
  double tolerance = 0.005;          ///< of kInterval and kNoise
  double margin = 0.01;              ///< of kVerdict: ratios this close to 1 are the same
  double doubt = 0;                  ///< of kVerdict: as of judge()

  /// Throws std::invalid_argument where no sampling could satisfy the rule.
  CONVTIME_API void validate() const;

  /// `rounds` are those so far, with `overhead` still in their times; `elapsed_seconds` is the time
  /// spent on them. Of the overhead's uncertainty and the clock's tick, kVerdict alone takes
  /// account: they belong to the interval of a ratio, and no more samples make them less.
  CONVTIME_API StopReason decide(const JudgedRounds& rounds, double elapsed_seconds,
                                 const Overhead& overhead = {}, double tick_seconds = 0) const;

  /// As decide(), but without looking at what the criterion asks for.
  CONVTIME_API StopReason decide_by_limits(std::size_t samples, double elapsed_seconds) const;
};

/// Decides as a rule does while samples come in batches. It looks at the criterion only where there
/// are a quarter more samples than at its last look: a look takes the longer, the more there are.
class CONVTIME_API StopJudge {
 public:
  explicit StopJudge(const StopRule& rule) : rule_(rule) {}

  /// Of the clock that samples are read from.
  void know_tick(double seconds) { tick_seconds_ = seconds; }

  /// As of judge(); of the rule's criterion kVerdict.
  void know_doubt(double share) { rule_.doubt = share; }

  /// What the method adds to each sample from here on, as far as is known.
  void expect(const Overhead& overhead) { overhead_ = overhead; }

  /// As StopRule::decide().
  StopReason decide(const JudgedRounds& rounds, double elapsed_seconds);

 private:
  StopRule rule_;
  double tick_seconds_ = 0;
  Overhead overhead_;
  std::size_t looked_at_ = 0;  ///< samples
};

CONVTIME_API const char* to_string(StopCriterion criterion);
CONVTIME_API const char* to_string(StopReason reason);

/// Throws std::invalid_argument for a name that no criterion has.
CONVTIME_API StopCriterion stop_criterion_from_string(const std::string& name);

}  // namespace convtime
