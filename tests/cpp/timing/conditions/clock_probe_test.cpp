#include "timing/conditions/clock_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace convtime {
namespace {

/// Of a multiprocessor at 2 GHz.
ClockStamp at(std::uint64_t nanoseconds, std::uint32_t multiprocessor) {
  return {nanoseconds, 2 * nanoseconds + 1000 * multiprocessor, multiprocessor};
}

TEST(ClockRates, AreCyclesOverTime) {
  const std::vector<ClockStamp> stamps = {at(1000, 0), at(61'000, 0), {161'000, 222'000, 0}};
  const std::vector<double> rates_hz = clock_rates_hz(stamps, 1);
  ASSERT_EQ(rates_hz.size(), 2U);
  EXPECT_DOUBLE_EQ(rates_hz[0], 2e9);
  EXPECT_DOUBLE_EQ(rates_hz[1], 1e9);  // 100,000 cycles in 100 us
}

TEST(ClockRates, CompareOnlyStampsOfOneMultiprocessor) {
  const std::vector<ClockStamp> stamps = {at(0, 7), at(0, 3), at(60'000, 3), at(60'000, 9)};
  EXPECT_EQ(clock_rates_hz(stamps, 2), std::vector{2e9});
  EXPECT_TRUE(std::isnan(clock_rates_hz(std::vector{at(0, 1), at(60'000, 2)}, 1)[0]));
}

TEST(ClockRates, WidenShortWindows) {
  // Ten calls of 10 us; the last 50 us run at half the rate.
  std::vector<ClockStamp> stamps;
  for (std::uint64_t i = 0; i <= 10; ++i) {
    stamps.push_back({10'000 * i, 20'000 * i - (i > 5 ? 10'000 * (i - 5) : 0), 0});
  }
  const std::vector<double> rates_hz = clock_rates_hz(stamps, 1);
  EXPECT_DOUBLE_EQ(rates_hz[0], 2e9);
  EXPECT_DOUBLE_EQ(rates_hz[9], 1e9);
  EXPECT_GT(rates_hz[5], 1.2e9);  // its window reaches into both halves
  EXPECT_LT(rates_hz[5], 1.8e9);
  // All of them together are too short.
  EXPECT_TRUE(
      std::isnan(clock_rates_hz(std::vector{at(0, 0), at(10'000, 0), at(20'000, 0)}, 1)[1]));
}

TEST(ClockRates, RefuseWhatIsNotInGroups) {
  const std::vector<ClockStamp> stamps(5);
  for (const std::size_t group : {0U, 2U, 5U}) {
    EXPECT_THROW(clock_rates_hz(stamps, group), std::invalid_argument);
  }
}

}  // namespace
}  // namespace convtime
