#include "timing/trace/clock_ratio.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace convtime {
namespace {

/// A host whose thread loses its processor for a while after some of the readings.
struct Host {
  double nanoseconds = 1e9;
  int readings = 0;

  ClockPair clocks(int preempted_after) {
    return {.ticks =
                [this, preempted_after] {
                  nanoseconds += 30;
                  const auto ticks = static_cast<std::uint64_t>(3 * nanoseconds);
                  ++readings;
                  nanoseconds += readings == preempted_after ? 1e6 : 30;
                  return ticks;
                },
            .nanoseconds = [this] { return nanoseconds; },
            .wait = [this] { nanoseconds += 2e6; }};
  }
};

class TicksPerNanosecond : public testing::TestWithParam<int> {};

TEST_P(TicksPerNanosecond, IsRightAcrossAPreemption) {
  Host host;
  EXPECT_NEAR(ticks_per_nanosecond(host.clocks(GetParam())), 3, 3e-4);
}

INSTANTIATE_TEST_SUITE_P(AtAnyReading, TicksPerNanosecond, testing::Range(0, 7));

}  // namespace
}  // namespace convtime
