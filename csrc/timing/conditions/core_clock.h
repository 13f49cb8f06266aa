#pragma once

#include "core/export.h"

namespace convtime {

/// Return the clock rate, in hertz, of the core on which the calling thread runs, over some 0.3 ms.
/// It times dependent additions, which take one cycle each. NaN on unsupported architectures.
CONVTIME_API double core_clock_hz();

}  // namespace convtime
