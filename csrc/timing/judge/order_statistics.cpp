#include "timing/judge/order_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace convtime {
namespace {

void require_values(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("statistics need at least one sample, got none");
  }
}

}  // namespace

std::vector<double> sorted(std::span<const double> values) {
  require_values(values);
  std::vector<double> result(values.begin(), values.end());
  std::sort(result.begin(), result.end());
  return result;
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double stdev_of(std::span<const double> values, double mean) {
  if (values.size() < 2) {
    return 0;
  }
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double quantile_of_sorted(const std::vector<double>& values, double q) {
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double fraction = position - static_cast<double>(below);
  // Ratios can be infinite, and std::lerp(x, infinity, 0) is NaN.
  return fraction == 0 ? values[below] : std::lerp(values[below], values[above], fraction);
}

namespace {

/// CUPTI converts the device's ticks to whole nanoseconds, so equal times can differ by one.
constexpr double kRoundingSeconds = 1.5e-9;

/// Return the first index of each group of values that are equal except for rounding, and the end.
std::vector<std::size_t> tie_boundaries(const std::vector<double>& ordered) {
  std::vector<std::size_t> boundaries = {0};
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    if (ordered[i] - ordered[i - 1] > kRoundingSeconds) {
      boundaries.push_back(i);
    }
  }
  boundaries.push_back(ordered.size());
  return boundaries;
}

}  // namespace

std::vector<double> spread_ties(std::vector<double> ordered) {
  const std::vector<std::size_t> boundaries = tie_boundaries(ordered);
  double tick = kInfinity;
  for (std::size_t group = 0; group + 1 < boundaries.size(); ++group) {
    const std::size_t first = boundaries[group];
    if (ordered[boundaries[group + 1] - 1] - ordered[first] > 2 * kRoundingSeconds) {
      return ordered;  // the clock is as fine as the rounding: close values are not equal
    }
    if (first > 0) {
      tick = std::min(tick, ordered[first] - ordered[first - 1]);
    }
  }
  if (!std::isfinite(tick)) {
    return ordered;
  }
  for (std::size_t group = 0; group + 1 < boundaries.size(); ++group) {
    const std::span ties(ordered.begin() + static_cast<std::ptrdiff_t>(boundaries[group]),
                         ordered.begin() + static_cast<std::ptrdiff_t>(boundaries[group + 1]));
    const double middle = (ties.front() + ties.back()) / 2;
    const auto count = static_cast<double>(ties.size());
    for (std::size_t i = 0; i < ties.size(); ++i) {
      ties[i] = middle + tick * ((static_cast<double>(i) + 0.5) / count - 0.5);
    }
  }
  return ordered;
}

std::size_t values_outside_interval(std::size_t count) {
  const auto n = static_cast<double>(count);
  constexpr std::size_t kExactUpTo = 100;
  if (count > kExactUpTo) {
    return static_cast<std::size_t>((n - kNormalQuantile * std::sqrt(n)) / 2);
  }
  // The largest k with P(Binomial(n, 1/2) < k) <= (1 - kConfidence) / 2.
  double probability = std::exp2(-n);
  double below = 0;
  std::size_t outside = 0;
  while (below + probability <= (1 - kConfidence) / 2) {
    below += probability;
    probability *= (n - static_cast<double>(outside)) / (static_cast<double>(outside) + 1);
    ++outside;
  }
  return outside;
}

Interval interval_between(const std::vector<double>& ordered, std::size_t outside) {
  if (outside == 0) {
    return {-kInfinity, kInfinity};
  }
  return {ordered[outside - 1], ordered[ordered.size() - outside]};  // x_(k) .. x_(n+1-k)
}

}  // namespace convtime
