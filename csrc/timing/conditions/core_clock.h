#pragma once

#include "core/export.h"

namespace convtime {

/// The rate of the clock, in hertz, of the core that the calling thread runs on, over some 0.3 ms:
/// additions that need each other's result take a cycle each. NaN on architectures for which it is
/// not known how to do that.
CONVTIME_API double core_clock_hz();

}  // namespace convtime
