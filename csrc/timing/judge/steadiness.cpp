#include "timing/judge/steadiness.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "timing/judge/statistics.h"

namespace convtime {
namespace {

/// The trend is tested in at most this many values, because the test takes all their pairs.
constexpr std::size_t kMaxTrendValues = 100;

double half_width(const Interval& interval) { return (interval.high - interval.low) / 2; }

std::vector<double> finite_values(std::span<const double> series) {
  std::vector<double> values;
  std::ranges::copy_if(series, std::back_inserter(values),
                       [](double value) { return std::isfinite(value); });
  return values;
}

bool halves_agree(std::span<const double> window, double allowed) {
  const std::span<const double> early = window.first(window.size() / 2);
  const std::span<const double> late = window.subspan(window.size() / 2);
  const double noise = half_width(median_interval(early)) + half_width(median_interval(late));
  return std::abs(median(late) - median(early)) <= std::max(allowed, noise);
}

/// Return the medians of consecutive groups of equal length, if there are many values.
std::vector<double> thinned(std::span<const double> values) {
  const std::size_t groups = std::min(values.size(), kMaxTrendValues);
  std::vector<double> medians;
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = group * values.size() / groups;
    const std::size_t end = (group + 1) * values.size() / groups;
    medians.push_back(median(values.subspan(begin, end - begin)));
  }
  return medians;
}

/// The variance of Kendall's S over the pairs of `count` values without ties.
double pairs_variance(std::size_t count) {
  const auto n = static_cast<double>(count);
  return n * (n - 1) * (2 * n + 5) / 18;
}

/// The test of Mann and Kendall: do the values rise or fall more often than by chance?
bool trend_is_significant(std::span<const double> values) {
  double s = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) {
      s += (values[j] > values[i]) - (values[j] < values[i]);
    }
  }
  std::map<double, std::size_t> ties;
  for (const double value : values) {
    ++ties[value];
  }
  double variance = pairs_variance(values.size());
  for (const auto& [value, count] : ties) {
    variance -= pairs_variance(count);
  }
  // S moves in steps of two around 0, hence the correction of one.
  return std::abs(s) - 1 > kNormalQuantile * std::sqrt(variance);
}

/// The slope of Theil and Sen: the median of the slopes between all pairs of values.
double slope(std::span<const double> values) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) {
      slopes.push_back((values[j] - values[i]) / static_cast<double>(j - i));
    }
  }
  return quantile(slopes, 0.5);
}

/// Return by how much the trend changes the values.
double trend_change(std::span<const double> values) {
  const double along_line = slope(values) * static_cast<double>(values.size());
  // A step that divides the values unevenly is between few of the pairs, and yields no slope.
  const std::size_t third = values.size() / 3;
  const double across = median(values.last(third)) - median(values.first(third));
  return std::max(std::abs(along_line), std::abs(across));
}

}  // namespace

std::size_t steady_window(std::size_t count) {
  return std::min(count, std::max(count / 2, kSteadyWindow));
}

bool is_steady(std::span<const double> series) {
  const std::vector<double> known = finite_values(series);
  if (series.size() >= kSteadyWindow && known.empty()) {
    return true;
  }
  if (known.size() < kSteadyWindow) {
    return false;
  }
  const std::span<const double> window = std::span(known).last(steady_window(known.size()));
  const double allowed = kSteadyTolerance * std::abs(median(window));
  if (!halves_agree(window, allowed)) {
    return false;
  }
  const std::vector<double> values = thinned(window);
  return trend_change(values) <= allowed || !trend_is_significant(values);
}

}  // namespace convtime
