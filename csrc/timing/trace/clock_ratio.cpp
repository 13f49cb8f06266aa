#include "timing/trace/clock_ratio.h"

#include <cmath>
#include <limits>

namespace convtime {
namespace {

constexpr int kReadings = 3;

/// Both clocks at one time.
struct Reading {
  double ticks = 0;
  double nanoseconds = 0;
  double width = std::numeric_limits<double>::infinity();  ///< nanoseconds that it took
};

Reading read(const ClockPair& clocks) {
  Reading tightest;
  for (int i = 0; i < kReadings; ++i) {
    const double before = clocks.nanoseconds();
    const auto ticks = static_cast<double>(clocks.ticks());
    const double after = clocks.nanoseconds();
    if (after - before < tightest.width) {
      tightest = {ticks, (before + after) / 2, after - before};
    }
  }
  return tightest;
}

}  // namespace

double ticks_per_nanosecond(const ClockPair& clocks) {
  const Reading first = read(clocks);
  clocks.wait();
  const Reading last = read(clocks);
  return (last.ticks - first.ticks) / (last.nanoseconds - first.nanoseconds);
}

}  // namespace convtime
