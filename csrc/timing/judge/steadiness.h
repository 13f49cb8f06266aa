#pragma once

#include <cstddef>
#include <span>

#include "core/export.h"

namespace convtime {

/// The fewest values that is_steady() looks at.
inline constexpr std::size_t kSteadyWindow = 20;

/// Drift over the window, relative to its median, that is not called drift.
inline constexpr double kSteadyTolerance = 0.005;

/// How many of the last values of a series of `count` is_steady() looks at: half, but at least
/// kSteadyWindow, and not more than there are.
CONVTIME_API std::size_t steady_window(std::size_t count);

/// Whether a series of times or clock rates has stopped drifting: steady_window() of it is steady
/// if
/// - its halves' medians differ by no more than kSteadyTolerance, or by no more than the
/// half-widths
///   of both medians' intervals (statistics.h) together, and
/// - it has no trend: either the test of Mann (1945) and Kendall (1975), corrected for ties, finds
///   none at kConfidence, or the trend changes the value by no more than kSteadyTolerance. By how
///   much is the slope of Theil (1950) and Sen (1968) times the window's length, or the difference
///   of the medians of its first and last third, whichever is more.
/// All of these are ranks and medians: outliers do not matter, and neither does the noise's
/// distribution.
///
/// Values that are not finite are unknown and skipped. A series of kSteadyWindow or more values
/// that are all unknown is steady: nothing is known to drift. Fewer than kSteadyWindow values, or
/// fewer known ones but some, are not steady yet.
CONVTIME_API bool is_steady(std::span<const double> series);

}  // namespace convtime
