#include "timing/judge/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace convtime {

double quantile(std::span<const double> values, double q) {
  if (!(q >= 0 && q <= 1)) {
    throw std::invalid_argument("quantile must be between 0 and 1, got " + std::to_string(q));
  }
  return quantile_of_sorted(sorted(values), q);
}

double median(std::span<const double> values) {
  return quantile_of_sorted(spread_ties(sorted(values)), 0.5);
}

Interval median_interval(std::span<const double> values) {
  return interval_between(spread_ties(sorted(values)), values_outside_interval(values.size()));
}

Summary summarize(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  Summary summary{};
  summary.count = ordered.size();
  summary.mean = mean_of(ordered);
  summary.stdev = stdev_of(ordered, summary.mean);
  summary.min = ordered.front();
  summary.max = ordered.back();
  summary.median = quantile_of_sorted(spread_ties(ordered), 0.5);
  summary.iqr = quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25);
  return summary;
}

double relative_stdev(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("a standard deviation needs at least one sample, got none");
  }
  const double mean = mean_of(values);
  return mean > 0 ? stdev_of(values, mean) / mean : kInfinity;
}

Verdict judge(Interval ratio, double margin, double doubt) {
  if (1 - margin <= ratio.low && ratio.high <= 1 + margin) {
    return Verdict::kSame;
  }
  if (ratio.high < 1 - margin - doubt) {
    return Verdict::kFaster;
  }
  return ratio.low > 1 + margin + doubt ? Verdict::kSlower : Verdict::kUncertain;
}

namespace {

void require_values(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("statistics need at least one sample, got none");
  }
}

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

constexpr double kNanosecond = 1e-9;
/// Start and end of a duration are rounded to nanoseconds.
constexpr double kRounding = 2.5 * kNanosecond;
/// The share of durations that must fit; a clock may be corrected while it is read.
constexpr double kMinFitting = 0.9;
/// The shortest distance between durations is at most this many steps.
constexpr int kMaxStepsApart = 4;

/// Return the shortest distance between durations that differ by more than rounding; 0 if there is
/// none.
double shortest_distance(const std::vector<double>& ordered) {
  double shortest = kInfinity;
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    const double distance = ordered[i] - ordered[i - 1];
    if (distance > kRounding) {
      shortest = std::min(shortest, distance);
    }
  }
  return std::isfinite(shortest) ? shortest : 0;
}

double distance_from_multiple(double duration, double step) {
  return std::abs(duration - step * std::round(duration / step));
}

/// Return the mean distance of durations from multiples of a step.
double misfit(std::span<const double> seconds, double step) {
  double sum = 0;
  for (const double duration : seconds) {
    sum += distance_from_multiple(duration, step);
  }
  return sum / static_cast<double>(seconds.size());
}

/// Return the step that fits best among those that rounding can turn into `distance`. For
/// neighboring candidate steps, even the multiple for the longest duration differs by less than
/// rounding.
double best_step(std::span<const double> seconds, double distance, double longest) {
  const double change = kNanosecond / 2 * distance / longest;
  double best = distance;
  double least = kInfinity;
  for (double step = distance - kRounding; step <= distance + kRounding; step += change) {
    const double found = misfit(seconds, step);
    if (found < least) {
      least = found;
      best = step;
    }
  }
  return best;
}

bool fits(std::span<const double> seconds, double step) {
  const auto fitting = std::ranges::count_if(seconds, [&](double duration) {
    return distance_from_multiple(duration, step) <= kRounding;
  });
  return static_cast<double>(fitting) >= kMinFitting * static_cast<double>(seconds.size());
}

}  // namespace

std::vector<double> sorted(std::span<const double> values) {
  require_values(values);
  std::vector<double> result(values.begin(), values.end());
  std::ranges::sort(result);
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

double tick_of(std::span<const double> seconds) {
  const std::vector<double> ordered = sorted(seconds);
  const double distance = shortest_distance(ordered);
  for (int steps_apart = 1; steps_apart <= kMaxStepsApart; ++steps_apart) {
    if (distance / steps_apart <= 2 * kRounding) {
      break;  // anything would fit
    }
    const double step = best_step(seconds, distance / steps_apart, ordered.back());
    if (fits(seconds, step)) {
      return step;
    }
  }
  return kNanosecond;
}

}  // namespace convtime
