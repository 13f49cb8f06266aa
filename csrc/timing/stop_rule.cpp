#include "timing/stop_rule.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "timing/statistics.h"

namespace convtime {

void StopRule::validate() const {
  if (min_samples < 1) {
    throw std::invalid_argument("min_samples must be at least 1, got 0");
  }
  if (max_samples < min_samples) {
    throw std::invalid_argument("max_samples must be at least min_samples (" +
                                std::to_string(min_samples) + "), got " +
                                std::to_string(max_samples));
  }
  if (!(budget_seconds > 0)) {
    throw std::invalid_argument("budget must be more than 0 seconds, got " +
                                std::to_string(budget_seconds));
  }
  if (!(max_noise >= 0)) {
    throw std::invalid_argument("max_noise must be 0 or more, got " + std::to_string(max_noise));
  }
}

StopReason StopRule::decide(std::span<const std::vector<double>> samples,
                            double elapsed_seconds) const {
  const std::size_t count = samples.front().size();
  if (count >= max_samples) {
    return StopReason::kMaxSamples;
  }
  if (count < min_samples) {
    return StopReason::kNotYet;
  }
  if (elapsed_seconds >= budget_seconds) {
    return StopReason::kBudget;
  }
  const auto quiet = [&](const std::vector<double>& one) {
    return relative_noise(one) <= max_noise;
  };
  return std::all_of(samples.begin(), samples.end(), quiet) ? StopReason::kQuiet
                                                            : StopReason::kNotYet;
}

const char* to_string(StopReason reason) {
  switch (reason) {
    case StopReason::kNotYet:
      return "not yet";
    case StopReason::kQuiet:
      return "quiet";
    case StopReason::kMaxSamples:
      return "max_samples";
    case StopReason::kBudget:
      return "budget";
  }
  return "unknown";
}

}  // namespace convtime
