#pragma once

#include <span>

#include "core/export.h"

namespace convtime {

/// Return the step of the clock that timed the durations: the largest step, at least a nanosecond,
/// such that nearly all durations are multiples, to within the rounding of timestamps to
/// nanoseconds. The durations must vary by several steps. Throws std::invalid_argument for no
/// durations.
CONVTIME_API double tick_of(std::span<const double> seconds);

}  // namespace convtime
