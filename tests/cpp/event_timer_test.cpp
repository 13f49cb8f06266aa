#include "timing/event_timer.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "gpu.h"
#include "timing/sleep_hold.h"
#include "timing/time_op.h"

namespace convtime {
namespace {

constexpr double kKnown = 200e-6;

/// A kernel of known duration on the default stream.
class KnownKernel final : public Callable {
 public:
  void call() override { sleep_.hold(kKnown); }

 private:
  SleepHold sleep_{nullptr};
};

TEST(EventTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.on_gpu = true});
  EXPECT_EQ(timing.method, Method::kEvent);
  EXPECT_EQ(timing.queue, Queue::kSleep);
  for (const double seconds : timing.samples.seconds[0]) {
    EXPECT_GE(seconds, kKnown);
    EXPECT_LE(seconds, kKnown + 20e-6);
  }
}

TEST(SyncTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.method = Method::kSync, .on_gpu = true});
  EXPECT_EQ(timing.queue, Queue::kNone);
  EXPECT_GE(timing.samples.seconds[0][0], kKnown);
  EXPECT_LE(timing.samples.seconds[0][0], kKnown + 200e-6);
}

TEST(SleepHold, HoldsTheStreamAndLetsGoByItself) {
  SKIP_WITHOUT_GPU();
  SleepHold hold(nullptr);
  hold.hold(0.05);
  EXPECT_FALSE(hold.released());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(hold.released());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(SleepHold, IsGivenUpForCallsThatWaitForTheGpu) {
  SKIP_WITHOUT_GPU();
  FunctionCallable waits([] { cudaDeviceSynchronize(); });
  Callable* const candidates[] = {&waits};
  const Timing timing = time_candidates(candidates, {.on_gpu = true});
  EXPECT_EQ(timing.queue, Queue::kNone);
  EXPECT_NE(timing.queue_reason, "");
  EXPECT_FALSE(timing.samples.seconds[0].empty());
}

TEST(EventTimer, RefusesMoreCallsThanItPreparedFor) {
  SKIP_WITHOUT_GPU();
  EventTimer timer(nullptr, 1);
  FunctionCallable nothing([] {});
  Callable* const calls[] = {&nothing, &nothing};
  EXPECT_THROW(timer.run(calls), std::out_of_range);
}

}  // namespace
}  // namespace convtime
