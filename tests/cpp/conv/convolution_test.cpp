#include "conv/convolution.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/backend.h"
#include "conv/plan_choice.h"
#include "core/cuda.h"

namespace convtime::conv {
namespace {

class FakePlan final : public Plan {
 public:
  explicit FakePlan(std::string tag) : tag_(std::move(tag)) {}

  const std::string& tag() const override { return tag_; }
  std::int64_t workspace_bytes() const override { return 0; }
  void run(cudnnHandle_t, const Operands&, void*) override {}

 private:
  std::string tag_;
};

/// Needs no GPU: its plans run unless they are told to fail.
class FakeSource final : public PlanSource {
 public:
  void run(Plan& plan) override {
    log.push_back("run " + plan.tag());
    if (const auto failure = failures.find(plan.tag()); failure != failures.end()) {
      failure->second();
    }
  }

  std::shared_ptr<Plan> rebuild(const PlanChoice& choice) override {
    log.push_back("rebuild " + choice.tag);
    return can_rebuild ? std::make_shared<FakePlan>(choice.tag) : nullptr;
  }

  Selection select() override {
    log.push_back("select");
    meanwhile();
    auto plan = std::make_shared<FakePlan>(selects);
    last_selected = plan;
    return {plan, choice_of(selects), lacks_memory};
  }

  bool is_capturing() override { return capturing; }

  std::map<std::string, std::function<void()>> failures;  ///< by tag
  std::string selects = "a";
  bool lacks_memory = false;
  bool can_rebuild = true;
  bool capturing = false;
  std::function<void()> meanwhile = [] {};  ///< what other threads do during a selection
  std::weak_ptr<Plan> last_selected;
  std::vector<std::string> log;
};

void lack_memory() { throw OutOfMemory("no memory"); }
void refuse() { throw CudnnError("not supported"); }
void break_down() { throw CudaError(cudaErrorIllegalAddress, "an illegal memory access"); }

using Log = std::vector<std::string>;

class Convolve : public testing::Test {
 protected:
  PlanOrigin convolve(ReadyPlans& plans) { return conv::convolve(key_, source_, plans, choices_); }

  /// Of the key's choices, the most recently used last.
  std::vector<std::pair<std::string, std::uint64_t>> uses() const {
    std::vector<std::pair<std::string, std::uint64_t>> result;
    for (const auto& [key, choice] : choices_.list()) {
      result.emplace_back(choice->choice.tag, choice->uses.load());
    }
    return result;
  }

  using Uses = std::vector<std::pair<std::string, std::uint64_t>>;

  PlanKey key_;
  FakeSource source_;
  ReadyPlans plans_{10};
  ReadyPlans others_plans_{10};  // of another thread
  ChoiceTable choices_{10};
};

TEST_F(Convolve, SelectsOnceAndRebuildsOnceInEachOtherThread) {
  EXPECT_EQ(convolve(plans_), PlanOrigin::kSelected);
  EXPECT_EQ(convolve(plans_), PlanOrigin::kReady);
  EXPECT_EQ(choices_.find(key_)->rebuilds, 0U);
  EXPECT_EQ(convolve(others_plans_), PlanOrigin::kRebuilt);
  EXPECT_EQ(convolve(others_plans_), PlanOrigin::kReady);
  EXPECT_EQ(source_.log, (Log{"select", "run a", "rebuild a", "run a", "run a"}));
  EXPECT_EQ(choices_.find(key_)->rebuilds, 1U);
  EXPECT_EQ(uses(), (Uses{{"a", 4}}));
}

TEST_F(Convolve, WithoutMemoryForItAPlanGivesWayInItsThreadAlone) {
  convolve(plans_);
  convolve(others_plans_);
  source_.failures["a"] = lack_memory;
  source_.selects = "b";
  source_.lacks_memory = true;
  EXPECT_EQ(convolve(plans_), PlanOrigin::kSelected);
  source_.failures.clear();
  source_.log.clear();
  EXPECT_EQ(convolve(plans_), PlanOrigin::kReady);
  EXPECT_EQ(convolve(others_plans_), PlanOrigin::kReady);
  ReadyPlans third(10);
  EXPECT_EQ(convolve(third), PlanOrigin::kRebuilt);
  EXPECT_EQ(source_.log, (Log{"run b", "run a", "rebuild a", "run a"}));
  EXPECT_EQ(uses(), (Uses{{"b", 2}, {"a", 4}}));
}

TEST_F(Convolve, ThrowsWhateverElseFailsOfAPlanThatHasRun) {
  convolve(plans_);
  source_.log.clear();
  source_.failures["a"] = refuse;
  EXPECT_THROW(convolve(plans_), CudnnError);
  source_.failures["a"] = break_down;
  EXPECT_THROW(convolve(plans_), CudaError);
  EXPECT_THROW(convolve(others_plans_), CudaError);
  EXPECT_EQ(source_.log, (Log{"run a", "run a", "rebuild a", "run a"}));
  EXPECT_EQ(uses(), (Uses{{"a", 1}}));
}

TEST_F(Convolve, SelectsAnewWhereAnotherThreadsChoiceIsRefusedOrNotBuiltAgain) {
  for (const bool can_rebuild : {true, false}) {
    ReadyPlans own(10);
    ReadyPlans others(10);
    choices_.clear();
    source_.failures.clear();
    source_.selects = "a";
    convolve(own);
    source_.can_rebuild = can_rebuild;
    source_.failures["a"] = refuse;
    source_.selects = "b";
    source_.log.clear();
    EXPECT_EQ(convolve(others), PlanOrigin::kSelected);
    EXPECT_EQ(convolve(others), PlanOrigin::kReady);
    EXPECT_EQ(source_.log, can_rebuild ? (Log{"rebuild a", "run a", "select", "run b"})
                                       : (Log{"rebuild a", "select", "run b"}));
    EXPECT_EQ(uses(), (Uses{{"a", 1}, {"b", 2}}));
    EXPECT_EQ(choices_.find(key_)->choice.tag, "a");
    EXPECT_EQ(choices_.find(key_)->rebuilds, 0U);
  }
}

TEST_F(Convolve, CountsWhatRanWhereAnotherThreadWasFasterAndUsesItsChoiceFromThenOn) {
  source_.selects = "b";
  source_.meanwhile = [this] { choices_.insert(key_, choice_of("a")); };
  EXPECT_EQ(convolve(plans_), PlanOrigin::kSelected);
  EXPECT_EQ(uses(), (Uses{{"a", 0}, {"b", 1}}));
  EXPECT_EQ(convolve(plans_), PlanOrigin::kRebuilt);
  EXPECT_EQ(source_.log, (Log{"select", "rebuild a", "run a"}));
  EXPECT_EQ(uses(), (Uses{{"b", 1}, {"a", 1}}));
}

TEST_F(Convolve, AfterARefusalKeepsThePlanUnderItsOwnTag) {
  convolve(plans_);
  source_.failures["a"] = lack_memory;
  source_.selects = "b";
  // Another thread gave way, too, and differently.
  source_.meanwhile = [this] { choices_.insert(key_, choice_of("c")); };
  convolve(plans_);
  const ReadyPlan* const ready = plans_.find(key_);
  ASSERT_NE(ready, nullptr);
  EXPECT_EQ(ready->plan->tag(), "b");
  EXPECT_EQ(ready->choice->choice.tag, "b");
  EXPECT_EQ(uses(), (Uses{{"a", 1}, {"c", 0}, {"b", 1}}));
}

TEST_F(Convolve, HandsNoOtherThreadWhatWantOfMemoryChose) {
  source_.selects = "small";
  source_.lacks_memory = true;
  EXPECT_EQ(convolve(plans_), PlanOrigin::kSelected);
  EXPECT_EQ(convolve(plans_), PlanOrigin::kReady);
  source_.selects = "large";
  source_.lacks_memory = false;
  EXPECT_EQ(convolve(others_plans_), PlanOrigin::kSelected);
  EXPECT_EQ(others_plans_.find(key_)->plan->tag(), "large");
}

TEST_F(Convolve, SelectsForEachCallWhereNoPlansAreKept) {
  ReadyPlans none(0);
  EXPECT_EQ(convolve(none), PlanOrigin::kSelected);
  EXPECT_EQ(convolve(none), PlanOrigin::kSelected);
  EXPECT_EQ(source_.log, (Log{"select", "select"}));
  EXPECT_EQ(uses(), (Uses{{"a", 2}}));
}

TEST_F(Convolve, KeepsAPlanThatAGraphIsCapturedOf) {
  {
    ReadyPlans plans(10);
    convolve(plans);
  }
  EXPECT_TRUE(source_.last_selected.expired());
  {
    ReadyPlans plans(10);
    choices_.clear();
    convolve(plans);
    source_.capturing = true;
    EXPECT_EQ(convolve(plans), PlanOrigin::kReady);
    convolve(plans);
    source_.capturing = false;
  }
  EXPECT_EQ(source_.last_selected.use_count(), 1);
}

}  // namespace
}  // namespace convtime::conv
