#include "timing/judge/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace convtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

/// CUPTI converts the device's ticks to whole nanoseconds, so that equal times can differ by one.
constexpr double kRoundingSeconds = 1.5e-9;

/// First of those that are equal but for rounding, for each group of them, and the end.
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

/// Times that a coarse clock shows as equal lie anywhere within its tick: spreads them over it
/// evenly, so that quantiles are those of grouped data. The tick is the smallest distance between
/// times that differ. Ordered times stay so.
std::vector<double> spread_ties(std::vector<double> ordered) {
  const std::vector<std::size_t> boundaries = tie_boundaries(ordered);
  double tick = kInfinity;
  for (std::size_t group = 0; group + 1 < boundaries.size(); ++group) {
    const std::size_t first = boundaries[group];
    if (ordered[boundaries[group + 1] - 1] - ordered[first] > 2 * kRoundingSeconds) {
      return ordered;  // a clock as fine as the rounding: what is close is not equal
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
  if (under > 0) {
    return over / under;
  }
  if (over == under) {
    return 1;
  }
  return over > under ? kInfinity : 0;
}

/// In order, of times that are all longer by `shift` than they are said to be.
std::vector<double> sorted_ratios(std::span<const double> over, std::span<const double> under,
                                  double shift) {
  std::vector<double> ratios(over.size());
  std::transform(over.begin(), over.end(), under.begin(), ratios.begin(),
                 [&](double a, double b) { return ratio_of(a + shift, b + shift); });
  return sorted(ratios);
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
  if (outside == 0) {
    return {-kInfinity, kInfinity};
  }
  return {values[outside - 1], values[values.size() - outside]};  // x_(k) .. x_(n+1-k)
}

Interval hull(Interval a, Interval b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

}  // namespace

double quantile(std::span<const double> values, double q) {
  if (!(q >= 0 && q <= 1)) {
    throw std::invalid_argument("quantile must lie between 0 and 1, got " + std::to_string(q));
  }
  return quantile_of_sorted(sorted(values), q);
}

double median(std::span<const double> values) {
  return quantile_of_sorted(spread_ties(sorted(values)), 0.5);
}

Interval median_interval(std::span<const double> values) {
  return interval_of_sorted(spread_ties(sorted(values)));
}

Summary summarize(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  const std::vector<double> spread = spread_ties(ordered);
  Summary summary{};
  summary.count = ordered.size();
  summary.mean = mean_of(ordered);
  summary.stdev = stdev_of(ordered, summary.mean);
  summary.min = ordered.front();
  summary.max = ordered.back();
  summary.median = quantile_of_sorted(spread, 0.5);
  summary.iqr = quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25);
  summary.median_interval = interval_of_sorted(spread);
  return summary;
}

double relative_noise(std::span<const double> values) {
  const std::vector<double> spread = spread_ties(sorted(values));
  const Interval interval = interval_of_sorted(spread);
  if (interval.high == interval.low) {
    return 0;
  }
  const double median = quantile_of_sorted(spread, 0.5);
  return median > 0 ? (interval.high - interval.low) / 2 / median : kInfinity;
}

double relative_stdev(std::span<const double> values) {
  require_values(values);
  const double mean = mean_of(values);
  return mean > 0 ? stdev_of(values, mean) / mean : kInfinity;
}

PairedRatio paired_ratio(std::span<const double> over, std::span<const double> under,
                         double uncertainty_seconds) {
  if (over.size() != under.size()) {
    throw std::invalid_argument("a ratio needs as many samples of one as of the other, got " +
                                std::to_string(over.size()) + " and " +
                                std::to_string(under.size()));
  }
  const std::vector<double> ratios = sorted_ratios(over, under, 0);
  PairedRatio ratio{quantile_of_sorted(ratios, 0.5), interval_of_sorted(ratios)};
  if (uncertainty_seconds > 0) {
    for (const double shift : {-uncertainty_seconds, uncertainty_seconds}) {
      ratio.interval = hull(ratio.interval, interval_of_sorted(sorted_ratios(over, under, shift)));
    }
  }
  return ratio;
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
