#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"

namespace convtime {

/// The confidence of every interval that convtime reports.
inline constexpr double kConfidence = 0.95;
/// How many standard deviations each way hold kConfidence of a normal distribution.
inline constexpr double kNormalQuantile = 1.959963984540054;

/// The fewest values whose order statistics give an interval of the median at kConfidence.
inline constexpr std::size_t kMinIntervalValues = 6;

struct Interval {
  double low;
  double high;
};

/// What is said of a set of times, in seconds.
struct Summary {
  std::size_t count;
  double mean;
  double stdev;  ///< of the sample (n - 1); 0 for one value
  double min;
  double max;
  double median;  ///< median()
  double iqr;     ///< 75 % quantile minus 25 % quantile
};

/// Quantile `q` in [0, 1], interpolated linearly between order statistics (type 7 of Hyndman and
/// Fan 1996, numpy's default). Throws std::invalid_argument for no values or a q outside [0, 1].
CONVTIME_API double quantile(std::span<const double> values, double q);

/// The median of times in seconds. Where the clock's tick makes equal times of different ones,
/// those are taken to lie evenly within their tick, as usual for grouped data (Python's
/// statistics.median_grouped); the tick is the smallest distance between times that differ by more
/// than a nanosecond. Throws std::invalid_argument for no values.
CONVTIME_API double median(std::span<const double> values);

/// Distribution-free interval of that median at kConfidence, from order statistics (the sign test;
/// Conover, Practical Nonparametric Statistics, 3.2), of independent values. Fewer than
/// kMinIntervalValues say nothing at that confidence: their interval is unbounded.
CONVTIME_API Interval median_interval(std::span<const double> values);

/// Throws std::invalid_argument for no values.
CONVTIME_API Summary summarize(std::span<const double> values);

/// Standard deviation of the sample over the mean. Infinite where the mean is not positive. Throws
/// std::invalid_argument for no values.
CONVTIME_API double relative_stdev(std::span<const double> values);

/// How the time that is `over` compares with the one that is `under`.
enum class Verdict {
  kSame,       ///< the whole interval of their ratio lies within 1 - margin and 1 + margin
  kFaster,     ///< the whole interval lies below 1 - margin
  kSlower,     ///< the whole interval lies above 1 + margin
  kUncertain,  ///< none of these
};

/// Faster and slower are certain only where the interval lies beyond the margin by `doubt` as well,
/// which is what else than the candidates may make of a ratio.
CONVTIME_API Verdict judge(Interval ratio, double margin, double doubt = 0);

CONVTIME_API const char* to_string(Verdict verdict);

}  // namespace convtime
