#include "timing/callable.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "timing/batch.h"

namespace convtime {
namespace {

/// Answers with values that Callable itself never returns.
class Answering final : public Callable {
 public:
  explicit Answering(std::string& log) : log_(log) {}
  void prepare() override { log_ += 'p'; }
  bool prepares_work() const override { return true; }
  void call() override {
    log_ += 'c';
    ++place_;
  }
  void discard_result() override { log_ += 'd'; }
  void settle() override { log_ += 's'; }
  std::vector<MemoryBlock> result_blocks() override { return {{16, 32}}; }
  std::size_t distinct_calls() const override { return 3; }
  std::size_t place() const override { return place_; }

 private:
  std::string& log_;
  std::size_t place_ = 4;
};

TEST(ForwardingCallable, ForwardsEverything) {
  std::string log;
  Answering answering(log);
  ForwardingCallable forwarding(answering);
  Callable& callable = forwarding;
  callable.prepare();
  callable.call();
  callable.discard_result();
  callable.settle();
  EXPECT_EQ(log, "pcds");
  EXPECT_TRUE(callable.prepares_work());
  ASSERT_EQ(callable.result_blocks().size(), 1U);
  EXPECT_EQ(callable.result_blocks()[0].bytes, 32U);
  EXPECT_EQ(callable.distinct_calls(), 3U);
  EXPECT_EQ(callable.place(), 5U);
}

TEST(PlaceRecorder, RecordsThePlacesOfCallsUntilTheyAreTaken) {
  std::string log;
  Answering answering(log);
  PlaceRecorder recorder(answering);
  recorder.call();
  recorder.call();
  EXPECT_EQ(recorder.take(), (std::vector<std::size_t>{5, 6}));
  EXPECT_TRUE(recorder.take().empty());
}

}  // namespace
}  // namespace convtime
