#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"

namespace convtime {

/// The minimum number of values for is_steady().
inline constexpr std::size_t kSteadyWindow = 20;

/// Drift over the window, relative to its median, that is tolerated.
inline constexpr double kSteadyTolerance = 0.005;

/// Return how many of the last values of a series of `count` is_steady() uses: half, but at least
/// kSteadyWindow, and at most all.
CONVTIME_API std::size_t steady_window(std::size_t count);

/// Return whether a series of times or clock rates has stopped drifting. Its steady_window() is
/// steady if
/// - its halves' medians differ by no more than kSteadyTolerance, or by no more than the sum of the
///   half-widths of both medians' intervals (statistics.h), and
/// - it has no trend: either the test of Mann (1945) and Kendall (1975), corrected for ties, finds
///   none at kConfidence, or the trend changes the value by no more than kSteadyTolerance. The
///   change is the larger of two values: the slope of Theil (1950) and Sen (1968) times the
///   window's length, and the difference of the medians of its first and last third.
/// All criteria use ranks and medians, so outliers and the noise's distribution do not matter.
///
/// Values that are not finite are unknown and skipped. A series of kSteadyWindow or more values
/// that are all unknown is steady: no drift is known. Fewer than kSteadyWindow values, or fewer
/// known values but at least one, are not steady yet.
CONVTIME_API bool is_steady(std::span<const double> series);

}  // namespace convtime
