#include "timing/conditions/rotating_callable.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
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

TEST(RotatingCallable, TakesItsCopiesInTurn) {
  std::string log;
  std::vector<std::unique_ptr<Callable>> copies;
  for (const char name : {'1', '2', '3'}) {
    copies.push_back(std::make_unique<Logging>(name, log));
  }
  RotatingCallable rotating(std::move(copies));
  EXPECT_EQ(rotating.distinct_calls(), 3U);
  for (int i = 0; i < 4; ++i) {
    rotating.prepare();
    rotating.call();
    rotating.discard_result();
  }
  EXPECT_EQ(log, "p1c1d1p2c2d2p3c3d3p1c1d1");
}

}  // namespace
}  // namespace convtime
