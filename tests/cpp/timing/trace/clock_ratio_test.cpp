#include "timing/trace/clock_ratio.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace convtime {
namespace {

/// A host whose thread loses its processor for a while after one of the readings.
struct Host {
  double nanoseconds = 1e9;
  double ticks_per_nanosecond = 3;
  double origin = 0;  ///< of the ticks
  int readings = 0;
  int waits = 0;

  ClockPair clocks(int preempted_after = 0) {
    return {.ticks =
                [this, preempted_after] {
                  nanoseconds += 30;
                  const double ticks = origin + ticks_per_nanosecond * nanoseconds;
                  ++readings;
                  nanoseconds += readings == preempted_after ? 1e6 : 30;
                  return static_cast<std::uint64_t>(ticks);
                },
            .nanoseconds = [this] { return nanoseconds; },
            .wait =
                [this] {
                  ++waits;
                  nanoseconds += 2e6;
                }};
  }
};

class TicksPerNanosecond : public testing::TestWithParam<int> {};

TEST_P(TicksPerNanosecond, IsRightAcrossAPreemption) {
  Host host;
  EXPECT_NEAR(ClockRatio(host.clocks(GetParam())).ticks_per_nanosecond(), 3, 3e-4);
}

INSTANTIATE_TEST_SUITE_P(AtAnyReading, TicksPerNanosecond, testing::Range(0, 7));

TEST(ClockRatio, IsWaitedForOnce) {
  Host host;
  ClockRatio ratio(host.clocks());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(ratio.ticks_per_nanosecond(), 3, 3e-4);
    host.nanoseconds += 5e6;
  }
  EXPECT_EQ(host.waits, 1);
}

TEST(ClockRatio, IsWaitedForWhereTooLittleTimeHasPassed) {
  Host host;
  ClockRatio ratio(host.clocks());
  ratio.ticks_per_nanosecond();
  EXPECT_NEAR(ratio.ticks_per_nanosecond(), 3, 3e-4);
  EXPECT_EQ(host.waits, 2);
}

TEST(ClockRatio, IsThatOfTheClockThatTookAnothersPlace) {
  Host host;
  ClockRatio ratio(host.clocks());
  ratio.ticks_per_nanosecond();
  host.nanoseconds += 5e6;
  host.ticks_per_nanosecond = 1;
  host.origin = 1e15;
  EXPECT_NEAR(ratio.ticks_per_nanosecond(), 1, 1e-3);
  EXPECT_EQ(host.waits, 2);
}

}  // namespace
}  // namespace convtime
