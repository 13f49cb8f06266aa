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

void require_values(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("statistics need at least one sample, got none");
  }
}

std::vector<double> sorted(std::span<const double> values) {
  require_values(values);
  std::vector<double> result(values.begin(), values.end());
  std::sort(result.begin(), result.end());
  return result;
}

double quantile_of_sorted(const std::vector<double>& values, double q) {
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double fraction = position - static_cast<double>(below);
  // Ratios can be infinite, and std::lerp makes NaN of none of the way from a value to infinity.
  return fraction == 0 ? values[below] : std::lerp(values[below], values[above], fraction);
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Of the sample; 0 for one value.
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

double ratio_of(double over, double under) {
  if (under == 0) {
    return over == 0 ? 1 : std::numeric_limits<double>::infinity();
  }
  return over / under;
}

/// How many of `count` sorted values lie outside of the median's interval, on each side.
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
  Summary summary{};
  summary.count = ordered.size();
  summary.mean = mean_of(ordered);
  summary.stdev = stdev_of(ordered, summary.mean);
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

double relative_stdev(std::span<const double> values) {
  require_values(values);
  const double mean = mean_of(values);
  return mean > 0 ? stdev_of(values, mean) / mean : std::numeric_limits<double>::infinity();
}

PairedRatio paired_ratio(std::span<const double> over, std::span<const double> under) {
  if (over.size() != under.size()) {
    throw std::invalid_argument("a ratio needs as many samples of one as of the other, got " +
                                std::to_string(over.size()) + " and " +
                                std::to_string(under.size()));
  }
  std::vector<double> ratios(over.size());
  std::transform(over.begin(), over.end(), under.begin(), ratios.begin(), ratio_of);
  const std::vector<double> ordered = sorted(ratios);
  return {quantile_of_sorted(ordered, 0.5), interval_of_sorted(ordered)};
}

Verdict judge(Interval ratio, double margin) {
  if (1 - margin <= ratio.low && ratio.high <= 1 + margin) {
    return Verdict::kSame;
  }
  if (ratio.high < 1 - margin) {
    return Verdict::kFaster;
  }
  return ratio.low > 1 + margin ? Verdict::kSlower : Verdict::kUncertain;
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kUncertain:
      return "uncertain";
  }
  return "unknown";
}

}  // namespace convtime
