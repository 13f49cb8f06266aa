#include "conv/stored_plans.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace convtime::conv {
namespace {

std::shared_ptr<StoredPlan> plan_of(std::int64_t engine) {
  return std::make_shared<StoredPlan>("plan", Engine{engine, {}}, std::nullopt);
}

Problem problem_on(std::int32_t device) {
  Problem problem;
  problem.device = device;
  return problem;
}

TEST(StoredPlans, AreFoundForTheirProblemOnTheirKindOfGpu) {
  StoredPlans plans;
  EXPECT_TRUE(plans.empty());
  const auto plan = plan_of(1);
  plans.insert(problem_on(0), {90, 132}, plan);
  EXPECT_FALSE(plans.empty());
  EXPECT_EQ(plans.size(), 1U);
  EXPECT_EQ(plans.find(problem_on(0), {90, 132}), plan);
  EXPECT_EQ(plans.find(problem_on(1), {90, 132}), plan);  // another GPU of the same kind
  EXPECT_EQ(plans.find(problem_on(0), {90, 114}), nullptr);
  EXPECT_EQ(plans.find(problem_on(0), {80, 132}), nullptr);
  Problem other;
  other.allow_tf32 = !other.allow_tf32;
  EXPECT_EQ(plans.find(other, {90, 132}), nullptr);
}

TEST(StoredPlans, AreReplacedErasedAndCleared) {
  StoredPlans plans;
  const auto old = plan_of(1);
  const auto plan = plan_of(2);
  plans.insert(problem_on(0), {90, 132}, old);
  plans.insert(problem_on(0), {90, 132}, plan);
  EXPECT_EQ(plans.size(), 1U);
  EXPECT_FALSE(plans.erase(problem_on(0), {90, 132}, old.get()));  // it was replaced
  EXPECT_EQ(plans.find(problem_on(0), {90, 132}), plan);
  EXPECT_TRUE(plans.erase(problem_on(0), {90, 132}, plan.get()));
  EXPECT_TRUE(plans.empty());
  plans.insert(problem_on(0), {90, 132}, plan);
  plans.clear();
  EXPECT_TRUE(plans.empty());
  EXPECT_EQ(plans.find(problem_on(0), {90, 132}), nullptr);
}

}  // namespace
}  // namespace convtime::conv
