#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"

namespace convtime {

/// The confidence of every interval that convtime reports.
inline constexpr double kConfidence = 0.95;

struct Interval {
  double low;
  double high;
};

/// What is said of a set of samples, in their own unit.
struct Summary {
  std::size_t count;
  double mean;
  double stdev;  ///< of the sample (n - 1); 0 for one value
  double min;
  double max;
  double median;
  double iqr;  ///< 75 % quantile minus 25 % quantile
  Interval median_interval;
};

/// Quantile `q` in [0, 1], interpolated linearly between order statistics (type 7 of Hyndman and
/// Fan 1996, numpy's default). Throws std::invalid_argument for no values or a q outside [0, 1].
CONVTIME_API double quantile(std::span<const double> values, double q);

/// Distribution-free interval of the median at kConfidence, from order statistics (the sign test;
/// Conover, Practical Nonparametric Statistics, 3.2). Up to five values cannot give 95 %, so their
/// interval is the whole range.
CONVTIME_API Interval median_interval(std::span<const double> values);

/// Throws std::invalid_argument for no values.
CONVTIME_API Summary summarize(std::span<const double> values);

/// Half the width of the median's interval over the median: how well the median is known.
/// Infinite where the median is not positive.
CONVTIME_API double relative_noise(std::span<const double> values);

}  // namespace convtime
