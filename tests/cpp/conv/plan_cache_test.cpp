#include "conv/plan_cache.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "conv/plan_choice.h"
#include "helpers.h"

namespace convtime::conv {
namespace {

PlanKey key_of(std::int32_t device) {
  PlanKey key;
  key.problem.device = device;
  return key;
}

std::vector<std::string> tags(const ChoiceTable& table) {
  std::vector<std::string> result;
  for (const auto& [key, choice] : table.list()) {
    result.push_back(choice->choice.tag);
  }
  return result;
}

using Tags = std::vector<std::string>;

TEST(PlanKey, DiffersInEverythingThatASelectionDependsOn) {
  const PlanKey base;
  std::vector<PlanKey> others(6, base);
  others[0].problem.allow_tf32 = false;
  others[1].policy.kind = PolicyKind::kBenchmark;
  others[2].policy.heuristic_mode_b = true;
  others[3].policy.benchmark_limit = 10;
  others[4].policy.engine.index = 38;
  others[5].policy.engine.knobs = {{2, 8}};
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(others[i] == base) << i;
    EXPECT_NE(PlanKeyHash{}(others[i]), PlanKeyHash{}(base)) << i;
  }
  EXPECT_EQ(PlanKeyHash{}(PlanKey{}), PlanKeyHash{}(base));
}

TEST(Policy, IsNamedAsThePythonArgument) {
  EXPECT_EQ(to_string(Policy{}), "heuristic");
  Policy policy;
  policy.kind = PolicyKind::kBenchmark;
  EXPECT_EQ(to_string(policy), "benchmark");
  policy.kind = PolicyKind::kEngine;
  policy.engine = {3, {{2, 8}}};
  EXPECT_EQ(to_string(policy), "eng3_k2=8");
}

TEST(ChoiceTable, ListsTheMostRecentlyUsedLast) {
  ChoiceTable table(2);
  const auto a = table.insert(key_of(0), choice_of("a"));
  table.insert(key_of(1), choice_of("b"));
  EXPECT_EQ(tags(table), (Tags{"a", "b"}));
  a->count_use();
  EXPECT_EQ(tags(table), (Tags{"b", "a"}));
  EXPECT_EQ(table.find(key_of(0))->uses, 1);
  EXPECT_EQ(table.find(key_of(2)), nullptr);
  table.insert(key_of(2), choice_of("c"));  // for which what was not used for longest is dropped
  EXPECT_EQ(tags(table), (Tags{"a", "c"}));
  const auto before = table.generation();
  table.clear();
  EXPECT_EQ(tags(table), Tags{});
  EXPECT_NE(table.generation(), before);
}

TEST(ChoiceTable, DropsOneOfAKeysChoices) {
  ChoiceTable table(2);
  table.insert(key_of(0), choice_of("a"));
  const auto b = table.insert(key_of(0), choice_of("b"));
  table.insert(key_of(1), choice_of("c"));
  EXPECT_EQ(tags(table), (Tags{"b", "c"}));
  EXPECT_EQ(table.find(key_of(0)), b);
}

TEST(ChoiceTable, HandsOutTheChoiceThatWasMadeFirst) {
  ChoiceTable table(10);
  const auto a = table.insert(key_of(0), choice_of("a"));
  const auto b = table.insert(key_of(0), choice_of("b"));  // of a thread that could not use a
  EXPECT_EQ(b->choice.tag, "b");
  EXPECT_EQ(table.find(key_of(0)), a);
  EXPECT_EQ(table.insert(key_of(0), choice_of("a")), a);
  EXPECT_EQ(table.insert(key_of(0), choice_of("b")), b);
  EXPECT_EQ(tags(table), (Tags{"a", "b"}));
}

TEST(ChoiceTable, HandsOutNoChoiceThatWasMadeForWantOfMemory) {
  ChoiceTable table(10);
  const auto small = table.insert(key_of(0), choice_of("small"), /*for_all=*/false);
  EXPECT_EQ(table.find(key_of(0)), nullptr);
  EXPECT_EQ(tags(table), Tags{"small"});
  const auto large = table.insert(key_of(0), choice_of("large"));
  EXPECT_EQ(table.find(key_of(0)), large);
  EXPECT_EQ(table.insert(key_of(0), choice_of("small")), small);
  EXPECT_EQ(table.find(key_of(0)), large);
}

TEST(PlanCapacity, IsReadAsPyTorchReadsIt) {
  EXPECT_EQ(plan_capacity(nullptr), 10'000U);
  EXPECT_EQ(plan_capacity("1"), 1U);
  EXPECT_EQ(plan_capacity(" 20000 plans"), 20'000U);
  EXPECT_EQ(plan_capacity("0"), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(plan_capacity("-1"), 0U);
}

TEST(PlanCapacity, SaysWhatItCannotRead) {
  for (const char* limit : {"", "many", "99999999999"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(plan_capacity(limit), 10'000U);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(contains(said, "convtime: TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT must be an integer"));
    EXPECT_TRUE(contains(said, "got '" + std::string(limit) + "'"));
    EXPECT_TRUE(contains(said, "10000 plans"));
  }
}

TEST(ChoiceTable, CanBeUsedByThreads) {
  ChoiceTable table(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&table] {
      for (int i = 0; i < 1000; ++i) {
        const PlanKey key = key_of(i % 16);
        auto choice = table.find(key);
        if (choice == nullptr) {
          choice = table.insert(key, choice_of("x"));
        }
        choice->count_use();
        EXPECT_LE(table.list().size(), 8);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(PlansOfThisThread, AreNoOtherThreads) {
  const ReadyPlans* const plans = &plans_of_this_thread();
  EXPECT_EQ(plans, &plans_of_this_thread());
  std::thread([plans] { EXPECT_NE(plans, &plans_of_this_thread()); }).join();
}

}  // namespace
}  // namespace convtime::conv
