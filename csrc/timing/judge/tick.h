#pragma once

#include <span>

#include "core/export.h"

namespace convtime {

/// The step of the clock that durations were read from: the largest one of which nearly all of them
/// are multiples, to within the rounding of timestamps to nanoseconds. No less than a nanosecond.
/// The durations must vary by several steps. Throws std::invalid_argument for none.
CONVTIME_API double tick_of(std::span<const double> seconds);

}  // namespace convtime
