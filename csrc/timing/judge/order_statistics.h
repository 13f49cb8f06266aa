#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "timing/judge/statistics.h"

namespace convtime {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the files of this folder do with ordered values.

/// Throws std::invalid_argument for no values.
std::vector<double> sorted(std::span<const double> values);

/// Of one value at least.
double mean_of(std::span<const double> values);

/// Of the sample (n - 1); 0 for one value.
double stdev_of(std::span<const double> values, double mean);

double quantile_of_sorted(const std::vector<double>& values, double q);

/// Times that a coarse clock shows as equal lie anywhere within its tick: spreads them over it
/// evenly, so that quantiles are those of grouped data. The tick is the smallest distance between
/// times that differ. Ordered times stay so.
std::vector<double> spread_ties(std::vector<double> ordered);

/// How many of `count` independent values lie outside of the median's interval, on each side.
std::size_t values_outside_interval(std::size_t count);

/// Of the median, from the values that lie so far inside; unbounded where `outside` is 0.
Interval interval_between(const std::vector<double>& ordered, std::size_t outside);

}  // namespace convtime
