#include "timing/conditions/rotating_callable.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace convtime {
namespace {

class Logging final : public Callable {
 public:
  Logging(char name, std::string& log) : name_(name), log_(log) {}
  void prepare() override { log_ += {'p', name_}; }
  void call() override { log_ += {'c', name_}; }
  void discard_result() override { log_ += {'d', name_}; }

 private:
  char name_;
  std::string& log_;
};

std::vector<std::unique_ptr<Callable>> logging(const std::string& names, std::string& log) {
  std::vector<std::unique_ptr<Callable>> copies;
  for (const char name : names) {
    copies.push_back(std::make_unique<Logging>(name, log));
  }
  return copies;
}

/// As timers do.
void time(Callable& callable) {
  callable.prepare();
  callable.call();
  callable.discard_result();
}

TEST(RotatingCallable, TakesItsCopiesInTurnOrInTheOrderGiven) {
  std::string log;
  RotatingCallable rotating(logging("123", log));
  EXPECT_EQ(rotating.distinct_calls(), 3U);
  for (int i = 0; i < 4; ++i) {
    time(rotating);
  }
  EXPECT_EQ(log, "p1c1d1p2c2d2p3c3d3p1c1d1");
  log.clear();
  RotatingCallable ordered(logging("12", log), {.visits = {1, 1, 0}});
  for (const std::size_t place : {1U, 1U, 0U, 1U}) {
    time(ordered);
    EXPECT_EQ(ordered.place(), place);
  }
  EXPECT_EQ(log, "p2c2d2p2c2d2p1c1d1p2c2d2");
}

TEST(RotatingCallable, CallsTheSameCopyBeforeWhereItIsToBeWarm) {
  std::string log;
  RotatingCallable rotating(logging("12", log), {.visits = {0, 1}, .warm = true});
  EXPECT_TRUE(rotating.prepares_work());
  time(rotating);  // the first call of all is the first one, too
  rotating.settle();
  time(rotating);
  time(rotating);
  EXPECT_EQ(log,
            "p1c1d1"
            "p2c2d2p2c2d2"
            "p1c1d1p1c1d1");
}

TEST(RotatingCallable, CallsTheOriginalWhereCopiesFailTheCheck) {
  std::string log;
  int asked = 0;
  Rotation rotation{.visits = {0, 1}, .warm = true};
  rotation.verify = [&] {
    ++asked;
    return false;
  };
  rotation.original = std::make_unique<Logging>('o', log);
  RotatingCallable rotating(logging("12", log), std::move(rotation));
  time(rotating);
  EXPECT_EQ(asked, 0);
  rotating.settle();
  rotating.settle();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(rotating.distinct_calls(), 1U);
  EXPECT_FALSE(rotating.prepares_work());
  time(rotating);
  time(rotating);
  EXPECT_EQ(rotating.place(), 0U);
  EXPECT_EQ(log, "p1c1d1pocodopocodo");
}

TEST(RotatingCallable, StaysOnTheFirstCopyUntilItIsCheckedAndCallsItAgainWhereTheCheckAsks) {
  for (const std::vector<std::optional<bool>>& answers :
       std::vector<std::vector<std::optional<bool>>>{
           {true}, {std::nullopt, true}, {std::nullopt, false}}) {
    std::string log;
    std::size_t asked = 0;
    Rotation rotation;
    rotation.verify = [&] { return answers.at(asked++); };
    rotation.original = std::make_unique<Logging>('o', log);
    RotatingCallable rotating(logging("12", log), std::move(rotation));
    time(rotating);
    time(rotating);
    rotating.settle();
    time(rotating);
    std::string expected = "p1c1d1p1c1d1";
    expected += answers.size() > 1 ? "p1c1d1" : "";
    EXPECT_EQ(log, expected + (answers.back() == true ? "p2c2d2" : "pocodo"));
  }
}

}  // namespace
}  // namespace convtime
