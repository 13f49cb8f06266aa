#include "timing/trace/device_activity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convtime {
namespace {

DeviceActivity kernel(std::string_view name, std::uint64_t start, std::uint64_t end) {
  DeviceActivity activity;
  activity.info.name = interned(name);
  activity.start_ns = start;
  activity.end_ns = end;
  return activity;
}

TEST(Interned, IsOneTextForEqualNames) {
  const std::string first = "relu";
  const std::string second = "relu";
  EXPECT_EQ(interned(first).data(), interned(second).data());
  EXPECT_NE(interned(first).data(), first.data());  // which may go
  EXPECT_EQ(interned("mul"), "mul");
}

TEST(Seconds, AddUpSpanOrUnite) {
  const std::vector<DeviceActivity> activities = {kernel("a", 1000, 2000), kernel("b", 1500, 6000),
                                                  kernel("c", 5000, 5500), kernel("d", 8000, 9000)};
  EXPECT_DOUBLE_EQ(sum_seconds(activities), 7000e-9);
  EXPECT_DOUBLE_EQ(busy_seconds(activities), 6000e-9);
  EXPECT_DOUBLE_EQ(span_seconds(activities), 8000e-9);
  EXPECT_EQ(sum_seconds({}), 0);
  EXPECT_EQ(busy_seconds({}), 0);
  EXPECT_EQ(span_seconds({}), 0);
}

TEST(Tabulate, HasAColumnForEachActivityAndARowForEachCall) {
  const std::vector<std::vector<DeviceActivity>> calls = {
      {kernel("_Z3addv", 0, 10), kernel("mul", 20, 40), kernel("_Z3addv", 50, 80)},
      {kernel("_Z3addv", 100, 140)},
  };
  const auto columns = tabulate(calls);
  ASSERT_EQ(columns.size(), 3U);
  EXPECT_EQ(columns[0].name, "add()");
  EXPECT_EQ(columns[1].name, "mul");
  EXPECT_EQ(columns[2].name, "add()");
  EXPECT_DOUBLE_EQ(columns[0].seconds[0], 10e-9);
  EXPECT_DOUBLE_EQ(columns[0].seconds[1], 40e-9);
  EXPECT_DOUBLE_EQ(columns[1].seconds[0], 20e-9);
  EXPECT_TRUE(std::isnan(columns[1].seconds[1]));
  EXPECT_DOUBLE_EQ(columns[2].seconds[0], 30e-9);
}

TEST(Tabulate, KeepsDifferentLaunchesOfOneKernelApart) {
  std::vector<std::vector<DeviceActivity>> calls = {{kernel("a", 0, 1), kernel("a", 2, 3)}};
  calls[0][1].info.grid = {8, 1, 1};
  EXPECT_EQ(tabulate(calls).size(), 2U);
}

TEST(Tabulate, KeepsDevicesApartAndSaysTheStreams) {
  std::vector<std::vector<DeviceActivity>> calls = {{kernel("a", 0, 1), kernel("a", 2, 3)},
                                                    {kernel("a", 4, 5)}};
  calls[0][0].stream = 13;
  calls[0][1].info.device = 1;
  calls[1][0].stream = 7;
  const auto columns = tabulate(calls);
  ASSERT_EQ(columns.size(), 2U);
  EXPECT_EQ(columns[0].streams, (std::vector<std::uint32_t>{7, 13}));
  EXPECT_EQ(columns[1].info.device, 1U);
}

}  // namespace
}  // namespace convtime
