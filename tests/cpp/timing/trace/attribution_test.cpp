#include "timing/trace/attribution.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace convtime {
namespace {

constexpr std::uint32_t kOwnThread = 1;
constexpr std::uint32_t kAutograd = 2;
constexpr std::uint32_t kStranger = 3;

// Ticks lie far enough apart for the tolerance between the clocks of host and device.
constexpr std::uint64_t kTick = 1'000'000;
constexpr std::uint64_t kReadAt = 100 * kTick;

/// Two calls, each with its preparation.
const std::vector<Window> kWindows = {{10 * kTick, 12 * kTick, 14 * kTick},
                                      {20 * kTick, 22 * kTick, 24 * kTick}};

DeviceActivity work(std::string_view name, std::uint64_t start, std::uint64_t end,
                    std::uint32_t correlation) {
  DeviceActivity activity;
  activity.info.name = interned(name);
  activity.start_ns = start * kTick;
  activity.end_ns = end * kTick;
  activity.correlation = correlation;
  activity.stream = 7;
  return activity;
}

ApiCall call(std::uint64_t start, std::uint32_t correlation, ApiKind kind = ApiKind::kLaunch,
             std::uint32_t thread = kOwnThread) {
  return {.start = start * kTick, .correlation = correlation, .thread = thread, .kind = kind};
}

ApiCall call_of(std::uint32_t thread, std::uint64_t start, std::uint32_t correlation) {
  return call(start, correlation, ApiKind::kLaunch, thread);
}

class Attribute : public testing::Test {
 protected:
  Attribution run(const TraceRecords& records) const {
    return attribute(kWindows, records, kContext, memory_);
  }

  const TraceContext kContext{.clock = {}, .own_thread = kOwnThread, .read_at = kReadAt};
  TraceMemory memory_;
};

std::vector<std::string_view> names(const std::vector<DeviceActivity>& activities) {
  std::vector<std::string_view> result;
  for (const DeviceActivity& activity : activities) {
    result.push_back(activity.info.name);
  }
  return result;
}

using Names = std::vector<std::string_view>;

/// Records of a kernel in each call.
TraceRecords sound_records() {
  return {.activities = {work("a", 50, 51, 1), work("b", 52, 53, 2)},
          .api_calls = {call(13, 1), call(23, 2)}};
}

TEST_F(Attribute, GivesWorkToTheCallThatIssuedIt) {
  // The device runs it long after the windows, and CUPTI hands it over in any order.
  const Attribution result =
      run({.activities = {work("c", 95, 96, 3), work("a", 90, 91, 1), work("b", 92, 93, 2)},
           .api_calls = {call(13, 1), call(22, 2), call(24, 3)}});
  ASSERT_EQ(result.calls.size(), 2U);
  EXPECT_EQ(names(result.calls[0]), Names{"a"});
  EXPECT_EQ(names(result.calls[1]), (Names{"b", "c"}));
  EXPECT_EQ(result.faults.count(), 0U);
  EXPECT_EQ(result.faults.describe(), "");
}

TEST_F(Attribute, LeavesOutWhatNoCallIssued) {
  const Attribution result =
      run({.activities = {work("before", 50, 51, 2), work("prepared", 52, 53, 3),
                          work("between", 54, 55, 4), work("after", 56, 57, 5)},
           .api_calls = {call(5, 2), call(11, 3), call(15, 4), call(25, 5)}});
  EXPECT_TRUE(result.calls[0].empty());
  EXPECT_TRUE(result.calls[1].empty());
  EXPECT_EQ(result.faults.count(), 0U);
}

TEST_F(Attribute, TakesTheWorkOfEveryThreadWhereThatIsAskedFor) {
  const TraceRecords records = {
      .activities = {work("a", 50, 51, 1), work("theirs", 52, 53, 2), work("after", 54, 55, 3)},
      .api_calls = {call_of(kStranger, 5, 4), call(13, 1), call_of(kStranger, 23, 2),
                    call_of(kStranger, 30, 3)}};
  EXPECT_TRUE(run(records).calls[1].empty());
  TraceContext context = kContext;
  context.every_thread = true;
  const Attribution result = attribute(kWindows, records, context, memory_);
  EXPECT_EQ(names(result.calls[1]), Names{"theirs"});
  EXPECT_EQ(result.of_other_threads, 0U);
  // Nothing is missing of what was issued before the window of all.
  const Window all{.prepare = 0, .begin = 10 * kTick, .end = 24 * kTick};
  const Attribution of_all = attribute({&all, 1}, records, context, memory_);
  EXPECT_EQ(names(of_all.calls[0]), (Names{"a", "theirs"}));
  EXPECT_EQ(of_all.faults.describe(), "");
}

TEST_F(Attribute, TakesTheEarlierOfTwoApiCallsOfOneCorrelation) {
  const Attribution result =
      run({.activities = {work("a", 50, 51, 1)}, .api_calls = {call(15, 1), call(13, 1)}});
  EXPECT_EQ(names(result.calls[0]), Names{"a"});
}

TEST_F(Attribute, CountsNanosecondsFromTheOrigin) {
  const Attribution result = attribute(kWindows, sound_records(),
                                       {.clock = {.origin = 10 * kTick, .ticks_per_ns = 2},
                                        .own_thread = kOwnThread,
                                        .read_at = kReadAt},
                                       memory_);
  EXPECT_EQ(result.calls[0][0].start_ns, 20 * kTick);
  EXPECT_DOUBLE_EQ(busy_seconds(result.calls[0]), 0.5e-9 * kTick);
}

TEST_F(Attribute, CountsWhatAutogradsThreadIssuesForACall) {
  const Attribution result = run(
      {.activities = {work("a", 50, 51, 1), work("b", 52, 53, 2)},
       .api_calls = {call_of(kAutograd, 13, 1), call_of(kAutograd, 21, 2)}});  // in a preparation
  ASSERT_EQ(names(result.calls[0]), Names{"a"});
  EXPECT_EQ(result.calls[0][0].issued_ns, 13 * kTick);
  EXPECT_EQ(result.calls[0][0].issued_by, kAutograd);
  EXPECT_EQ(result.of_other_threads, 0U);
}

TEST_F(Attribute, LeavesOutAThreadThatWorksOnItsOwnAccount) {
  const Attribution result = run({.activities = {work("a", 50, 51, 1), work("theirs", 52, 53, 2),
                                                 work("theirs", 0, 0, 4)},  // still runs
                                  .api_calls = {call(13, 1), call_of(kStranger, 13, 2),
                                                call_of(kStranger, 17, 3),  // between calls
                                                call_of(kStranger, 23, 4)}});
  EXPECT_EQ(names(result.calls[0]), Names{"a"});
  EXPECT_TRUE(result.calls[1].empty());
  EXPECT_EQ(result.of_other_threads, 2U);
  EXPECT_EQ(result.faults.count(), 0U);
}

TEST_F(Attribute, FindsWhatIsMissing) {
  TraceRecords records = sound_records();
  records.activities.pop_back();
  EXPECT_EQ(run(records).faults.missing, 1U);
  EXPECT_EQ(run(records).faults.describe(), "1 launch without its record");
  records.api_calls.back().failed = true;
  EXPECT_EQ(run(records).faults.count(), 0U);
  records.api_calls.erase(records.api_calls.begin());
  EXPECT_EQ(run(records).faults.describe(), "1 record without its launch");
  records = sound_records();
  records.lost = 2;
  EXPECT_EQ(run(records).faults.describe(), "2 buffers of records that were lost");
}

TEST_F(Attribute, ForgivesARecordOfALaunchThatWasReadBefore) {
  remember(kWindows, sound_records(), kContext, memory_);
  // Also beside a launch before it whose API call is read only now, since it blocked.
  const Attribution result = run({.activities = {work("late", 30, 31, 2), work("copy", 40, 41, 1)},
                                  .api_calls = {call(17, 1, ApiKind::kTransfer, kStranger)}});
  EXPECT_EQ(result.faults.count(), 0U);
}

TEST_F(Attribute, FindsThatAllLaunchesAreLost) {
  remember(kWindows, sound_records(), kContext, memory_);
  const Attribution result =
      run({.activities = {work("a", 50, 51, 3), work("b", 52, 53, 4)}, .api_calls = {}});
  EXPECT_EQ(result.faults.describe(), "2 records without their launches");
}

TEST_F(Attribute, RemembersAThreadThatWorksOnItsOwnAccount) {
  remember(kWindows, {.activities = {}, .api_calls = {call_of(kStranger, 17, 1)}}, kContext,
           memory_);
  const Attribution result =
      run({.activities = {work("theirs", 50, 51, 2)}, .api_calls = {call_of(kStranger, 13, 2)}});
  EXPECT_TRUE(result.calls[0].empty());
  EXPECT_EQ(result.of_other_threads, 1U);
}

TEST_F(Attribute, ExpectsNothingOfWhatIsCaptured) {
  TraceRecords records{.activities = {},
                       .api_calls = {call(12, 1, ApiKind::kBeginCapture), call(13, 2),
                                     call(14, 3, ApiKind::kEndCapture)}};
  EXPECT_EQ(run(records).faults.count(), 0U);
  records.api_calls.push_back(call(23, 4));  // behind the capture
  EXPECT_EQ(run(records).faults.missing, 1U);
}

TEST_F(Attribute, FindsTimesThatCannotBe) {
  TraceRecords records = sound_records();
  const std::pair<DeviceActivity, const char*> impossible[] = {
      {work("a", 0, 0, 1), "1 record without times"},
      {work("a", 51, 50, 1), "1 record that ends before it begins"},
      {work("a", 12, 50, 1), "1 record that begins before its launch"},
      {work("a", 50, 101, 1), "1 record that ends after it was read"}};
  for (const auto& [activity, said] : impossible) {
    records.activities[0] = activity;
    EXPECT_EQ(run(records).faults.describe(), said);
    EXPECT_TRUE(run(records).calls[0].empty());
  }
  // The clocks of host and device differ.
  records = sound_records();
  records.activities[0].start_ns = 13 * kTick - 10'000;
  records.activities[1].end_ns = kReadAt + 10'000;
  EXPECT_EQ(run(records).faults.count(), 0U);
}

TEST_F(Attribute, FindsAGraphThatLacksANode) {
  TraceRecords records{
      .activities = {work("a", 50, 51, 1), work("b", 52, 53, 1), work("a", 54, 55, 2)},
      .api_calls = {call(13, 1, ApiKind::kGraphLaunch), call(23, 2, ApiKind::kGraphLaunch)}};
  for (DeviceActivity& activity : records.activities) {
    activity.graph = 5;
  }
  EXPECT_EQ(run(records).faults.missing, 1U);
  records.activities.push_back(work("b", 56, 57, 2));
  records.activities.back().graph = 5;
  EXPECT_EQ(run(records).faults.missing, 0U);
}

TEST_F(Attribute, TakesATransferWithoutARecordForOneWithoutBytes) {
  TraceRecords records = sound_records();
  records.api_calls.push_back(call(13, 3, ApiKind::kTransfer));
  EXPECT_EQ(run(records).faults.missing, 0U);
  // Until the same step of a call is seen to transfer something.
  records.activities.push_back(work("memset", 52, 53, 3));
  remember(kWindows, records, kContext, memory_);
  EXPECT_EQ(run(records).faults.missing, 0U);
  records.activities.pop_back();
  EXPECT_EQ(run(records).faults.missing, 1U);
}

TEST_F(Attribute, ExpectsNoBytesOfATransferBecauseOthersHaveSome) {
  // A flush in the preparation, a memset behind a kernel and one of another callable have bytes.
  const int other = 0;
  std::vector<Window> windows = kWindows;
  windows[1].of = &other;
  const TraceRecords records{
      .activities = {work("flush", 50, 51, 1), work("own", 52, 53, 3), work("memset", 54, 55, 4),
                     work("memset", 56, 57, 5), work("own", 58, 59, 6)},
      .api_calls = {call(11, 1, ApiKind::kTransfer),
                    {.start = 125 * kTick / 10,
                     .correlation = 2,
                     .thread = kOwnThread,
                     .kind = ApiKind::kTransfer},
                    call(13, 3),
                    call(14, 4, ApiKind::kTransfer),
                    call(23, 5, ApiKind::kTransfer),
                    call(24, 6)}};
  remember(windows, records, kContext, memory_);
  EXPECT_EQ(attribute(windows, records, kContext, memory_).faults.missing, 0U);
}

TEST_F(Attribute, MissesATransferThatOtherCallsHaveOrThatIsTheOnlyOne) {
  EXPECT_EQ(run({.activities = {work("memset", 50, 51, 1), work("own", 52, 53, 2),
                                work("own", 54, 55, 4)},
                 .api_calls = {call(12, 1, ApiKind::kTransfer), call(13, 2),
                               call(22, 3, ApiKind::kTransfer), call(23, 4)}})
                .faults.missing,
            1U);
  EXPECT_EQ(run({.activities = {}, .api_calls = {call(13, 1, ApiKind::kTransfer)}}).faults.missing,
            1U);
}

TEST_F(Attribute, SeesWorkThatDoesNotWaitForItsTurn) {
  DeviceActivity ahead = work("ahead", 40, 41, 2);
  ahead.stream = 13;
  DeviceActivity in_turn = work("in turn", 52, 53, 3);
  in_turn.stream = 13;
  const Attribution result =
      run({.activities = {work("flush", 45, 50, 1), ahead, in_turn, work("own", 51, 54, 4)},
           .api_calls = {call(11, 1, ApiKind::kTransfer), call(13, 2), call(13, 3), call(13, 4)}});
  ASSERT_EQ(names(result.calls[0]), (Names{"ahead", "own", "in turn"}));
  EXPECT_TRUE(result.calls[0][0].unordered);
  EXPECT_FALSE(result.calls[0][1].unordered);
  EXPECT_FALSE(result.calls[0][2].unordered);

  DeviceActivity of_another_device = work("ahead", 40, 41, 2);
  of_another_device.info.device = 1;
  EXPECT_TRUE(run({.activities = {work("flush", 45, 50, 1), of_another_device},
                   .api_calls = {call(11, 1), call(13, 2)}})
                  .calls[0][0]
                  .unordered);
}

TEST_F(Attribute, SeesWorkThatTheNextCallDoesNotWaitFor) {
  DeviceActivity late = work("late", 60, 75, 2);
  late.stream = 13;
  const Attribution result = run({.activities = {work("flush", 45, 50, 1), late,
                                                 work("flush", 70, 80, 3), work("own", 81, 84, 4)},
                                  .api_calls = {call(11, 1, ApiKind::kTransfer), call(13, 2),
                                                call(21, 3, ApiKind::kTransfer), call(23, 4)}});
  ASSERT_EQ(names(result.calls[0]), Names{"late"});
  EXPECT_TRUE(result.calls[0][0].unordered);
  EXPECT_FALSE(result.calls[1][0].unordered);
}

TEST_F(Attribute, TellsOfWorkWithoutRecords) {
  const Attribution result =
      run({.activities = {work("own", 51, 54, 1)},
           .api_calls = {call(13, 1), call(14, 2, ApiKind::kUnrecorded),
                         call(21, 3, ApiKind::kUnrecorded)}});  // in a preparation
  ASSERT_EQ(result.unrecorded.size(), 1U);
  EXPECT_EQ(result.unrecorded[0].window, 0U);
  EXPECT_EQ(result.faults.count(), 0U);
}

}  // namespace
}  // namespace convtime
