#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "core/export.h"

namespace convtime {

/// Two clocks to be set against each other, and a way to let time pass.
struct ClockPair {
  std::function<std::uint64_t()> ticks;
  std::function<double()> nanoseconds;
  std::function<void()> wait;
};

/// How fast the one clock runs by the other.
class CONVTIME_API ClockRatio {
 public:
  explicit ClockRatio(ClockPair clocks) : clocks_(std::move(clocks)) {}

  /// Ticks of the one in a nanosecond of the other, from now back to the last time that this was
  /// asked. Waits where that is too short a while, the first time, and where the clock was
  /// exchanged since: its ticks then do not go on from those before.
  double ticks_per_nanosecond();

 private:
  /// Both clocks at one time.
  struct Reading {
    double ticks = 0;
    double nanoseconds = 0;
    double width = std::numeric_limits<double>::infinity();  ///< nanoseconds that it took
  };

  Reading read() const;
  static double ratio(const Reading& first, const Reading& last);

  ClockPair clocks_;
  std::optional<Reading> last_;
  double ratio_ = 0;  ///< as it was found at the last reading
};

}  // namespace convtime
