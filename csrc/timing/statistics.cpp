#include "timing/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace convtime {
namespace {

std::vector<double> sorted(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("statistics need at least one sample, got none");
  }
  std::vector<double> result(values.begin(), values.end());
  std::sort(result.begin(), result.end());
  return result;
}

double quantile_of_sorted(const std::vector<double>& values, double q) {
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

/// How many of `count` sorted values lie outside of the median's interval, on each side.
std::size_t values_outside_interval(std::size_t count) {
  const auto n = static_cast<double>(count);
  constexpr std::size_t kExactUpTo = 100;
  if (count > kExactUpTo) {
    constexpr double kNormalQuantile = 1.959963984540054;  // of (1 + kConfidence) / 2
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

Interval interval_of_sorted(const std::vector<double>& values) {
  const std::size_t outside = values_outside_interval(values.size());
  // x_(k) .. x_(n+1-k), and the whole range where not even k = 1 is possible.
  const std::size_t first = outside == 0 ? 0 : outside - 1;
  return {values[first], values[values.size() - 1 - first]};
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  if (!(q >= 0 && q <= 1)) {
    throw std::invalid_argument("quantile must lie between 0 and 1, got " + std::to_string(q));
  }
  return quantile_of_sorted(sorted(values), q);
}

Interval median_interval(std::span<const double> values) {
  return interval_of_sorted(sorted(values));
}

Summary summarize(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  const auto n = static_cast<double>(ordered.size());
  Summary summary{};
  summary.count = ordered.size();
  summary.mean = std::accumulate(ordered.begin(), ordered.end(), 0.0) / n;
  if (ordered.size() > 1) {
    double squares = 0;
    for (const double value : ordered) {
      squares += (value - summary.mean) * (value - summary.mean);
    }
    summary.stdev = std::sqrt(squares / (n - 1));
  }
  summary.min = ordered.front();
  summary.max = ordered.back();
  summary.median = quantile_of_sorted(ordered, 0.5);
  summary.iqr = quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25);
  summary.median_interval = interval_of_sorted(ordered);
  return summary;
}

double relative_noise(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  const double median = quantile_of_sorted(ordered, 0.5);
  if (!(median > 0)) {
    return std::numeric_limits<double>::infinity();
  }
  const Interval interval = interval_of_sorted(ordered);
  return (interval.high - interval.low) / 2 / median;
}

}  // namespace convtime
