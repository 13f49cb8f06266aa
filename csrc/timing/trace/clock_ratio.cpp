#include "timing/trace/clock_ratio.h"

#include <cmath>

namespace convtime {
namespace {

constexpr int kReadings = 3;
/// A reading takes some 0.1 us, so shorter intervals are too inaccurate.
constexpr double kMinNanoseconds = 1e6;
/// A clock that was replaced differs by its whole origin.
constexpr double kSameClock = 0.01;

}  // namespace

/// Of three readings, the tightest counts: the thread may be preempted during a reading.
ClockRatio::Reading ClockRatio::read() const {
  Reading tightest;
  for (int i = 0; i < kReadings; ++i) {
    const double before = clocks_.nanoseconds();
    const auto ticks = static_cast<double>(clocks_.ticks());
    const double after = clocks_.nanoseconds();
    if (after - before < tightest.width) {
      tightest = {ticks, (before + after) / 2, after - before};
    }
  }
  return tightest;
}

double ClockRatio::ratio(const Reading& first, const Reading& last) {
  return (last.ticks - first.ticks) / (last.nanoseconds - first.nanoseconds);
}

double ClockRatio::ticks_per_nanosecond() {
  Reading now = read();
  const bool known = last_.has_value() && now.nanoseconds - last_->nanoseconds >= kMinNanoseconds &&
                     std::abs(ratio(*last_, now) - ratio_) <= kSameClock * ratio_;
  if (!known) {
    last_ = now;
    clocks_.wait();
    now = read();
  }
  ratio_ = ratio(*last_, now);
  last_ = now;
  return ratio_;
}

}  // namespace convtime
