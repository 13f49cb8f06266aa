#include "timing/timers/host_timer.h"
#include "timing/device_traits.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "helpers.h"
#include "timing/clock.h"
#include "timing/time_op.h"

namespace convtime {
namespace {

using std::chrono::milliseconds;

void sleep_5ms() { std::this_thread::sleep_for(milliseconds(5)); }

/// Takes long to drop its result, which is not to be timed.
class SlowToDrop final : public Callable {
 public:
  void call() override {}
  void discard_result() override { sleep_5ms(); }
};

class SlowToPrepare final : public Callable {
 public:
  void prepare() override { sleep_5ms(); }
  void call() override {}
};

/// The device is busy for 5 ms, and the host continues much later.
std::int64_t drain_5ms() {
  sleep_5ms();
  const std::int64_t idle_at = now_nanoseconds();
  std::this_thread::sleep_for(milliseconds(50));
  return idle_at;
}

double time_once(HostTimer&& timer, Callable& callable) {
  Callable* const calls[] = {&callable};
  timer.run(calls);
  return timer.collect(1).calls.front().seconds;
}

TEST(HostTimer, TimesACallOfKnownDuration) {
  FunctionCallable sleeper(sleep_5ms);
  for (const double seconds :
       {time_once(HostTimer(HostTimer::Until::kReturn, now_nanoseconds), sleeper),
        time_once(HostTimer(HostTimer::Until::kIdle, now_nanoseconds), sleeper)}) {
    EXPECT_GE(seconds, 0.005);
    EXPECT_LT(seconds, 0.05);
  }
}

TEST(HostTimer, WaitsForTheDeviceInsideOrOutsideOfWhatItTimes) {
  FunctionCallable nothing([] {});
  EXPECT_LT(time_once(HostTimer(HostTimer::Until::kReturn, drain_5ms), nothing), 0.004);
  const double seconds = time_once(HostTimer(HostTimer::Until::kIdle, drain_5ms), nothing);
  EXPECT_GE(seconds, 0.005);
  EXPECT_LT(seconds, 0.05);  // until the device was idle, not until the host continued
}

TEST(HostTimer, FindsTheDeviceIdleBeforeEveryCallAndLeavesItSo) {
  std::string events;
  FunctionCallable call([&] { events += 'c'; });
  Callable* const calls[] = {&call, &call};
  HostTimer(HostTimer::Until::kReturn, [&] {
    events += 'd';
    return now_nanoseconds();
  }).run(calls);
  EXPECT_EQ(events, "dcdcd");
}

TEST(HostTimer, TimesNeitherThePreparationNorTheResultsDestruction) {
  SlowToPrepare prepared;
  EXPECT_LT(time_once(HostTimer(HostTimer::Until::kReturn, now_nanoseconds), prepared), 0.004);
  EXPECT_LT(time_once(HostTimer(HostTimer::Until::kIdle, now_nanoseconds), prepared), 0.004);
  SlowToDrop dropped;
  EXPECT_LT(time_once(HostTimer(HostTimer::Until::kReturn, now_nanoseconds), dropped), 0.004);
}

/// Spins for so many nanoseconds, and counts its calls.
class Spin final : public Callable {
 public:
  explicit Spin(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  void call() override {
    ++calls;
    ++kept;
    spin(std::chrono::nanoseconds(nanoseconds_));
  }
  void discard_result() override { kept = 0; }
  bool prepares_work() const override { return prepares; }

  std::size_t calls = 0;
  std::size_t kept = 0;
  bool prepares = false;

 private:
  std::int64_t nanoseconds_;
};

TEST(HostClock, HasATick) {
  EXPECT_GE(host_clock_tick(), 1e-9);
  EXPECT_LT(host_clock_tick(), 1e-5);
}

TEST(CpuWorkTimer, CallsOftenEnoughForTheClocksTick) {
  CpuWorkTimer timer;
  Spin brief(0);
  Spin longer(1'000'000);
  Spin prepared(0);
  prepared.prepares = true;
  Callable* const calls[] = {&brief, &longer, &prepared};
  timer.run(calls);
  EXPECT_GT(timer.settle(calls), 0U);
  EXPECT_GT(timer.repeats(brief), 10U);
  EXPECT_EQ(timer.repeats(longer), 1U);
  EXPECT_EQ(timer.repeats(prepared), 1U);
  const std::size_t before = brief.calls;
  timer.run(calls);
  EXPECT_EQ(brief.calls - before, timer.repeats(brief));
  EXPECT_EQ(brief.kept, 0U);
  const std::vector<TimedCall> collected = timer.collect(3).calls;
  EXPECT_LT(collected[0].seconds, 1e-5);  // of one call
  EXPECT_GE(collected[1].seconds, 1e-3);
}

TEST(CpuWorkTimer, DoesNotAverageACallThatIsBriefNowAndThen) {
  CpuWorkTimer timer;
  int calls = 0;
  FunctionCallable alternating([&] {
    if (++calls % 2 == 0) {
      sleep_5ms();
    }
  });
  Callable* const candidates[] = {&alternating};
  timer.run(candidates);
  timer.settle(candidates);
  EXPECT_EQ(timer.repeats(alternating), 1U);
}

TEST(CpuWorkTimer, ReadsLongCallsAloneAndShortOnesTogether) {
  CpuWorkTimer timer;
  Spin brief(1000);
  Spin longer(5'000'000);
  Callable* const once[] = {&brief, &longer};
  timer.run(once);
  timer.settle(once);
  const std::size_t before = timer.host_record()->readings.size();
  Callable* const calls[] = {&brief, &brief, &longer, &brief};
  timer.run(calls);
  std::vector<std::size_t> readings;
  for (const TimedCall& call : timer.collect(4).calls) {
    readings.push_back(call.reading.value());
  }
  EXPECT_EQ(readings, (std::vector{before, before, before + 1, before + 2}));
  EXPECT_NEAR(timer.host_record()->readings[before + 1].seconds, 5e-3, 1e-3);
}

TEST(TimeOp, TimesOnTheCpu) {
  const Samples samples = time_op(sleep_5ms, {.stop = {.min_samples = 3, .max_samples = 3}});
  EXPECT_EQ(samples.method, Method::kCpu);
  EXPECT_EQ(samples.seconds.size(), 3U);
  EXPECT_GE(samples.median(), 0.005);
  std::ostringstream text;
  text << samples;
  EXPECT_TRUE(contains(text.str(), "median of 3"));
}

TEST(TimeOp, SaysWhyTheQueueIsNotHeldOnACpu) {
  FunctionCallable nothing([] {});
  Callable* const candidates[] = {&nothing};
  const Timing timing = time_candidates(candidates, {.queue = Queue::kSleep});
  EXPECT_EQ(timing.queue.value, Queue::kNone);
  EXPECT_EQ(timing.queue.reason, "method 'cpu' does not queue calls on a device");
}

TEST(TimeOp, SaysWhyACpuHasNoRegime) {
  for (const Regime asked : {Regime::kBurst, Regime::kAuto, Regime::kAsIs}) {
    const Samples samples = time_op([] {}, {.regime = asked, .warmup = {.steady = false}});
    EXPECT_EQ(samples.regime, Regime::kAsIs);
    EXPECT_EQ(samples.regime_reason,
              asked == Regime::kAsIs ? "" : "the work is on the CPU, and regimes are a GPU's");
  }
}

TEST(TimeOp, NeedsNoTimeOnACpuForAGpusClockToFall) {
  double fastest = 1;
  for (int i = 0; i < 20; ++i) {
    Spin brief(5000);
    const double start = now_seconds();
    EXPECT_GE(time_op([&] { brief.call(); }).seconds.size(), StopRule{}.min_samples);
    fastest = std::min(fastest, now_seconds() - start);
  }
  EXPECT_LT(fastest, kDeviceTraits.watch_seconds / 2);
}

TEST(TimeOp, RefusesGpuMethodsForWorkOnTheCpuAndAGpuThatIsNotThere) {
  for (const Method method : {Method::kKernel, Method::kEvent, Method::kSync}) {
    EXPECT_THROW(time_op([] {}, {.method = method}), std::invalid_argument);
  }
  if (!cuda_available()) {
    EXPECT_THROW(time_op([] {}, {.on_gpu = true}), std::invalid_argument);
  }
}

TEST(Names, RoundTripAndRefuseOthers) {
  for (const Method method : {Method::kAuto, Method::kKernel, Method::kEvent, Method::kGraph,
                              Method::kSync, Method::kCpu}) {
    EXPECT_EQ(enum_from_string<Method>("method", to_string(method)), method);
  }
  for (const Queue queue : {Queue::kGate, Queue::kSleep, Queue::kNone}) {
    EXPECT_EQ(enum_from_string<Queue>("queue", to_string(queue)), queue);
  }
  EXPECT_EQ(error_of<std::invalid_argument>([] { enum_from_string<Method>("method", "clock"); }),
            "method must be one of 'auto', 'kernel', 'event', 'graph', 'sync', 'cpu', got 'clock'");
}

}  // namespace
}  // namespace convtime
