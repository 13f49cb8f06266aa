#include "timing/conditions/queue_hold.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "helpers.h"

namespace convtime {
namespace {

constexpr std::size_t kMaxRounds = 64;
constexpr RoundLoad kLight{.calls = 1, .launches = 1, .host_seconds = 5e-6};

TEST(HoldPlan, LetsABatchHaveNoMoreLaunchesThanTheQueueHolds) {
  const HoldPlan plan(kMaxRounds);
  EXPECT_EQ(plan.round_limit(kLight), kMaxRounds);
  for (const std::size_t launches : {20UL, 100UL, 500UL}) {
    const std::size_t rounds = plan.round_limit({.calls = 2, .launches = launches});
    EXPECT_LE(rounds * launches, 1024U);
    EXPECT_GT((rounds + 2) * (launches + 8), 900U) << "as many as there is room for";
  }
  EXPECT_EQ(plan.round_limit({.calls = 1, .launches = 5000}), 1U);
  // Of what is not counted, who needs 2 ms may have issued a thousand launches in them.
  EXPECT_EQ(plan.round_limit({.calls = 1, .host_seconds = 5e-6}), kMaxRounds);
  EXPECT_EQ(plan.round_limit({.calls = 1, .host_seconds = 2e-3}), 1U);
  EXPECT_EQ(plan.round_limit({.calls = 1, .launches = 1, .host_seconds = 2e-3}), kMaxRounds);
}

TEST(HoldPlan, ShrinksBehindAStallAndGrowsAgain) {
  HoldPlan plan(kMaxRounds);
  plan.stalled(64);
  EXPECT_EQ(plan.round_limit(kLight), 8U);
  for (int batch = 0; batch < 100; ++batch) {
    plan.held();
  }
  EXPECT_EQ(plan.round_limit(kLight), kMaxRounds);
}

TEST(HoldPlan, TriesLessOftenToGrowWhereItStallsEachTime) {
  HoldPlan plan(kMaxRounds);
  std::size_t stalls = 0;
  for (int batch = 0; batch < 2000; ++batch) {
    const std::size_t rounds = plan.round_limit(kLight);
    if (rounds > 20) {
      plan.stalled(rounds);
      ++stalls;
    } else {
      plan.held();
    }
  }
  EXPECT_GE(stalls, 2U);
  EXPECT_LE(stalls, 6U);
  EXPECT_FALSE(plan.given_up());
}

TEST(HoldPlan, IsGivenUpForThreeStallsInARowDownToOneRound) {
  HoldPlan plan(kMaxRounds);
  for (const std::size_t rounds : {64UL, 8UL}) {
    plan.held();
    plan.stalled(rounds);
    EXPECT_FALSE(plan.given_up());
  }
  plan.stalled(1);
  EXPECT_FALSE(plan.given_up());
  plan.held();
  plan.stalled(1);
  plan.stalled(1);
  EXPECT_FALSE(plan.given_up());
  plan.stalled(1);
  EXPECT_TRUE(plan.given_up());
}

TEST(HoldPlan, SaysWhatItSaw) {
  HoldPlan plan(kMaxRounds);
  for (int batch = 0; batch < 17; ++batch) {
    plan.held();
  }
  for (int batch = 0; batch < 3; ++batch) {
    plan.stalled(1);
  }
  EXPECT_TRUE(contains(plan.reason({.calls = 2, .launches = 300}),
                       "3 of 20 batches were still being issued after 0.1 s, the last one of 2 "
                       "calls with 300 launches in all: a call waits for the GPU"));
  EXPECT_TRUE(contains(plan.reason({.calls = 1}), "the last one of 1 call: a call waits"));
}

}  // namespace
}  // namespace convtime
