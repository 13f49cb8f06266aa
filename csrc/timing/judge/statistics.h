#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "core/enum_names.h"
#include "core/export.h"

namespace convtime {

/// The confidence of every interval that convtime reports.
inline constexpr double kConfidence = 0.95;
/// The number of standard deviations on each side that contain kConfidence of a normal
/// distribution.
inline constexpr double kNormalQuantile = 1.959963984540054;

/// The fewest values whose order statistics give an interval of the median at kConfidence.
inline constexpr std::size_t kMinIntervalValues = 6;

struct Interval {
  double low;
  double high;
};

/// A summary of a set of times, in seconds.
struct Summary {
  std::size_t count;
  double mean;
  double stdev;  ///< sample standard deviation (n - 1); 0 for one value
  double min;
  double max;
  double median;  ///< median()
  double iqr;     ///< 75 % quantile minus 25 % quantile
};

/// Quantile `q` in [0, 1], interpolated linearly between order statistics (type 7 of Hyndman and
/// Fan 1996, numpy's default). Throws std::invalid_argument for no values or a q outside [0, 1].
CONVTIME_API double quantile(std::span<const double> values, double q);

/// Return the median of times in seconds. Distinct times that the clock's tick made equal are
/// assumed to be evenly distributed within their tick, as usual for grouped data (Python's
/// statistics.median_grouped). The tick is the smallest distance between times that differ by more
/// than a nanosecond. Throws std::invalid_argument for no values.
CONVTIME_API double median(std::span<const double> values);

/// Return the distribution-free interval of that median at kConfidence, from order statistics of
/// independent values (the sign test; Conover, Practical Nonparametric Statistics, 3.2). Unbounded
/// for fewer than kMinIntervalValues values, which do not suffice at that confidence.
CONVTIME_API Interval median_interval(std::span<const double> values);

/// Throws std::invalid_argument for no values.
CONVTIME_API Summary summarize(std::span<const double> values);

/// Return the sample standard deviation divided by the mean. Infinite if the mean is not positive.
/// Throws std::invalid_argument for no values.
CONVTIME_API double relative_stdev(std::span<const double> values);

/// How the time `over` compares with the time `under`.
enum class Verdict {
  kSame,       ///< the whole interval of their ratio is within 1 - margin and 1 + margin
  kFaster,     ///< the whole interval is below 1 - margin
  kSlower,     ///< the whole interval is above 1 + margin
  kUncertain,  ///< none of the above
};
constexpr auto names_of(Verdict /*all*/) {
  return std::array{"same", "faster", "slower", "uncertain"};
}

/// Faster and slower require that the interval is also beyond the margin by `doubt`: the error of a
/// ratio that is not due to the candidates.
CONVTIME_API Verdict judge(Interval ratio, double margin, double doubt = 0);

/// A method's overhead per time, as determined by a calibration.
struct Overhead {
  double seconds = 0;
  double uncertainty_seconds = 0;  ///< its error in either direction, at kConfidence
};

/// Return the step of the clock that timed the durations: the largest step, at least a nanosecond,
/// such that nearly all durations are multiples, to within the rounding of timestamps to
/// nanoseconds. The durations must vary by several steps. Throws std::invalid_argument for no
/// durations.
CONVTIME_API double tick_of(std::span<const double> seconds);

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Functions on ordered values for the files in this folder.

/// Throws std::invalid_argument for no values.
std::vector<double> sorted(std::span<const double> values);

/// Requires at least one value.
double mean_of(std::span<const double> values);

/// Return the sample standard deviation (n - 1); 0 for one value.
double stdev_of(std::span<const double> values, double mean);

double quantile_of_sorted(const std::vector<double>& values, double q);

/// Spread times that a coarse clock shows as equal evenly over its tick, which makes quantiles
/// those of grouped data. The tick is the smallest distance between times that differ. Ordered
/// times stay ordered.
std::vector<double> spread_ties(std::vector<double> ordered);

/// Return how many of `count` independent values are outside the median's interval, on each side.
std::size_t values_outside_interval(std::size_t count);

/// Return the median's interval that excludes `outside` values on each side; unbounded if `outside`
/// is 0.
Interval interval_between(const std::vector<double>& ordered, std::size_t outside);

}  // namespace convtime
