#pragma once

#include <cstdint>
#include <functional>

#include "core/export.h"

namespace convtime {

/// Two clocks to be set against each other, and a way to let time pass.
struct ClockPair {
  std::function<std::uint64_t()> ticks;
  std::function<double()> nanoseconds;
  std::function<void()> wait;
};

/// Ticks of the one clock in a nanosecond of the other. Each end of the wait is read three times,
/// of which the tightest counts: the thread may lose its processor between two readings.
CONVTIME_API double ticks_per_nanosecond(const ClockPair& clocks);

}  // namespace convtime
