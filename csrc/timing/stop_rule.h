#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/export.h"

namespace convtime {

enum class StopReason {
  kNotYet,
  kQuiet,       ///< every candidate's relative noise is small enough
  kMaxSamples,  ///< every candidate has max_samples
  kBudget,      ///< the time budget is spent
};

/// When enough has been sampled. All candidates are sampled equally often, and min_samples times in
/// any case: an interval of fewer says nothing.
struct StopRule {
  std::size_t min_samples = 10;
  std::size_t max_samples = 10'000;
  double budget_seconds = 1.0;  ///< of sampling; warm-up is not counted
  double max_noise = 0.005;     ///< of relative_noise() (statistics.h)

  /// Throws std::invalid_argument where no sampling could satisfy the rule.
  CONVTIME_API void validate() const;

  /// `samples` holds each candidate's samples so far, `elapsed_seconds` the time spent on them.
  CONVTIME_API StopReason decide(std::span<const std::vector<double>> samples,
                                 double elapsed_seconds) const;
};

CONVTIME_API const char* to_string(StopReason reason);

}  // namespace convtime
