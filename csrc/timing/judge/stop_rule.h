#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/export.h"

namespace convtime {

/// What is to be reached before sampling ends.
enum class StopCriterion {
  /// "interval": relative_noise() (statistics.h) of every candidate is at most `tolerance`.
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
  /// "budget": the budget is spent, however many samples that gives.
  kBudget,
};

enum class StopReason {
  kNotYet,
  kSettled,     ///< what the criterion asks for is reached
  kMaxSamples,  ///< every candidate has max_samples
  kBudget,      ///< the time budget is spent
  kTimeout,     ///< the caller's deadline passed (supervision.h); no rule says so
};

/// When enough has been sampled. All candidates are sampled equally often, and min_samples times in
/// any case: what is said of fewer says nothing.
struct StopRule {
  StopCriterion criterion = StopCriterion::kInterval;
  std::size_t min_samples = 10;
  std::size_t max_samples = 10'000;  ///< not looked at by kBudget
  double budget_seconds = 1.0;       ///< of sampling; not warm-up; not looked at by kCount
  double tolerance = 0.005;          ///< of kInterval and kNoise
  double margin = 0.01;              ///< of kVerdict: ratios this close to 1 are the same

  /// Throws std::invalid_argument where no sampling could satisfy the rule.
  CONVTIME_API void validate() const;

  /// `samples` holds each candidate's samples so far, `elapsed_seconds` the time spent on them.
  CONVTIME_API StopReason decide(std::span<const std::span<const double>> samples,
                                 double elapsed_seconds) const;
};

CONVTIME_API const char* to_string(StopCriterion criterion);
CONVTIME_API const char* to_string(StopReason reason);

/// Throws std::invalid_argument for a name that no criterion has.
CONVTIME_API StopCriterion stop_criterion_from_string(const std::string& name);

}  // namespace convtime
