#include "timing/trace/device_activity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "timing/trace/attribution.h"

namespace convtime {
namespace {

DeviceActivity kernel(const std::string& name, std::uint64_t start, std::uint64_t end,
                      std::uint32_t correlation) {
  DeviceActivity activity;
  activity.info.name = name;
  activity.start_ns = start;
  activity.end_ns = end;
  activity.correlation = correlation;
  return activity;
}

std::vector<std::string> names(const std::vector<DeviceActivity>& activities) {
  std::vector<std::string> result;
  for (const DeviceActivity& activity : activities) {
    result.push_back(activity.info.name);
  }
  return result;
}

using Names = std::vector<std::string>;

TEST(Attribute, GivesWorkToTheWindowThatIssuedIt) {
  const std::vector<Window> windows = {{100, 200}, {300, 400}};
  const std::vector<ApiCall> calls = {{150, 1}, {350, 2}, {360, 3}};
  // The device runs it long after the windows, and CUPTI hands it over in any order.
  const auto result = attribute(
      windows, calls,
      {kernel("c", 9500, 9600, 3), kernel("a", 9000, 9100, 1), kernel("b", 9200, 9300, 2)});
  ASSERT_EQ(result.size(), 2U);
  EXPECT_EQ(names(result[0]), Names{"a"});
  EXPECT_EQ(names(result[1]), (Names{"b", "c"}));
}

TEST(Attribute, LeavesOutWhatNoWindowIssued) {
  const std::vector<Window> windows = {{100, 200}, {300, 400}};
  const std::vector<ApiCall> calls = {{50, 1}, {250, 2}, {450, 3}};
  const auto result = attribute(windows, calls,
                                {kernel("before", 150, 160, 1), kernel("between", 310, 320, 2),
                                 kernel("after", 500, 510, 3), kernel("unknown", 150, 160, 4)});
  EXPECT_TRUE(result[0].empty());
  EXPECT_TRUE(result[1].empty());
}

TEST(Attribute, TakesTheEarlierOfTwoApiCallsOfOneCorrelation) {
  const std::vector<Window> windows = {{100, 200}};
  const std::vector<ApiCall> calls = {{210, 1}, {190, 1}};
  EXPECT_EQ(names(attribute(windows, calls, {kernel("a", 300, 310, 1)})[0]), Names{"a"});
}

TEST(Attribute, CountsTheWindowsEdges) {
  const std::vector<Window> windows = {{100, 200}};
  const std::vector<ApiCall> calls = {{100, 1}, {200, 2}};
  EXPECT_EQ(attribute(windows, calls, {kernel("a", 1, 2, 1), kernel("b", 3, 4, 2)})[0].size(), 2U);
}

TEST(Seconds, AddUpOrSpan) {
  const std::vector<DeviceActivity> activities = {
      kernel("a", 1000, 2000, 1), kernel("b", 1500, 6000, 2), kernel("c", 5000, 5500, 3)};
  EXPECT_DOUBLE_EQ(busy_seconds(activities), 6000e-9);
  EXPECT_DOUBLE_EQ(span_seconds(activities), 5000e-9);
  EXPECT_EQ(busy_seconds({}), 0);
  EXPECT_EQ(span_seconds({}), 0);
}

TEST(Tabulate, HasAColumnForEachActivityAndARowForEachCall) {
  const std::vector<std::vector<DeviceActivity>> calls = {
      {kernel("_Z3addv", 0, 10, 1), kernel("mul", 20, 40, 2), kernel("_Z3addv", 50, 80, 3)},
      {kernel("_Z3addv", 100, 140, 4)},
  };
  const auto columns = tabulate(calls);
  ASSERT_EQ(columns.size(), 3U);
  EXPECT_EQ(columns[0].info.name, "add()");
  EXPECT_EQ(columns[1].info.name, "mul");
  EXPECT_EQ(columns[2].info.name, "add()");
  EXPECT_DOUBLE_EQ(columns[0].seconds[0], 10e-9);
  EXPECT_DOUBLE_EQ(columns[0].seconds[1], 40e-9);
  EXPECT_DOUBLE_EQ(columns[1].seconds[0], 20e-9);
  EXPECT_TRUE(std::isnan(columns[1].seconds[1]));
  EXPECT_DOUBLE_EQ(columns[2].seconds[0], 30e-9);
}

TEST(Tabulate, KeepsDifferentLaunchesOfOneKernelApart) {
  std::vector<std::vector<DeviceActivity>> calls = {{kernel("a", 0, 1, 1), kernel("a", 2, 3, 2)}};
  calls[0][1].info.grid = {8, 1, 1};
  EXPECT_EQ(tabulate(calls).size(), 2U);
}

}  // namespace
}  // namespace convtime
