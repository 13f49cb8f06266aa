#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "core/export.h"

namespace convtime {

/// Two clocks to compare, and a function that lets time pass.
struct ClockPair {
  std::function<std::uint64_t()> ticks;
  std::function<double()> nanoseconds;
  std::function<void()> wait;
};

/// The rate of one clock relative to the other.
class CONVTIME_API ClockRatio {
 public:
  explicit ClockRatio(ClockPair clocks) : clocks_(std::move(clocks)) {}

  /// Return the ticks of the first clock per nanosecond of the second, from the previous call until
  /// now. Waits if that interval is too short, at the first call, and if the clock was replaced
  /// since: its ticks then do not continue the previous ones.
  double ticks_per_nanosecond();

 private:
  /// A simultaneous reading of both clocks.
  struct Reading {
    double ticks = 0;
    double nanoseconds = 0;
    double width = std::numeric_limits<double>::infinity();  ///< duration of the reading in
                                                             ///< nanoseconds
  };

  Reading read() const;
  static double ratio(const Reading& first, const Reading& last);

  ClockPair clocks_;
  std::optional<Reading> last_;
  double ratio_ = 0;  ///< the ratio at the last reading
};

}  // namespace convtime
