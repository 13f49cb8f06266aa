#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "timing/judge/statistics.h"

namespace convtime {

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
