#include "timing/stop_rule.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace convtime {
namespace {

using Samples = std::vector<std::vector<double>>;

const std::vector<double> kNoisy = {1, 9, 1, 9, 1, 9, 1, 9, 1, 9};
const std::vector<double> kQuiet(10, 5.0);

TEST(StopRule, StopsWhenEveryCandidateIsQuiet) {
  const StopRule rule{.min_samples = 10};
  EXPECT_EQ(rule.decide(Samples{kQuiet, kQuiet}, 0), StopReason::kQuiet);
  EXPECT_EQ(rule.decide(Samples{kQuiet, kNoisy}, 0), StopReason::kNotYet);
}

TEST(StopRule, DoesNotTrustTooFewSamples) {
  const StopRule rule{.min_samples = 11};
  EXPECT_EQ(rule.decide(Samples{kQuiet}, 0), StopReason::kNotYet);
}

TEST(StopRule, StopsAtTheMostSamples) {
  const StopRule rule{.min_samples = 10, .max_samples = 10};
  EXPECT_EQ(rule.decide(Samples{kNoisy}, 0), StopReason::kMaxSamples);
}

TEST(StopRule, StopsWhenTheBudgetIsSpentButNotBelowTheLeastSamples) {
  const StopRule rule{.budget_seconds = 2};
  EXPECT_EQ(rule.decide(Samples{kNoisy}, 1.9), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{kNoisy}, 2), StopReason::kBudget);
  EXPECT_EQ(rule.decide(Samples{{}}, 2), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{std::vector<double>(9, 1.0)}, 2), StopReason::kNotYet);
}

TEST(StopRule, RefusesRulesThatCannotBeMet) {
  EXPECT_THROW(StopRule{.min_samples = 0}.validate(), std::invalid_argument);
  EXPECT_THROW((StopRule{.min_samples = 5, .max_samples = 4}.validate()), std::invalid_argument);
  EXPECT_THROW(StopRule{.budget_seconds = 0}.validate(), std::invalid_argument);
  EXPECT_THROW(StopRule{.max_noise = -1}.validate(), std::invalid_argument);
  EXPECT_NO_THROW(StopRule{}.validate());
}

}  // namespace
}  // namespace convtime
