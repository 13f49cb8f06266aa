#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/synchronize.h"
#include "gpu.h"
#include "helpers.h"
#include "kernels/known_duration/known_duration.h"
#include "timing/clock.h"
#include "timing/conditions/gate_hold.h"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/judge/statistics.h"
#include "timing/timers/device_timers.h"
#include "timing/trace/cupti_session.h"

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

class GpuTimingTest : public GpuTest {
 protected:
  Timing time_kernel(const TimingOptions& options = {}) {
    KnownKernel kernel;
    return time_on_gpu(kernel, options);
  }
};

TEST_F(GpuTimingTest, EventsTimeAKernelOfKnownDuration) {
  const Timing timing = time_kernel({.method = Method::kEvent});
  EXPECT_EQ(timing.queue.value, Queue::kGate);
  const CandidateSamples& samples = timing.samples.candidates[0];
  ASSERT_EQ(column(samples.samples, &Sample::raw_seconds).size(), samples.samples.size());
  const Sample& first = samples.samples.at(0);
  EXPECT_NEAR(*first.raw_seconds - first.seconds, timing.overhead.value.seconds, 1e-12);
  EXPECT_GT(timing.overhead.value.seconds, 0.5e-6);
  EXPECT_LT(timing.overhead.value.seconds, 10e-6);
  EXPECT_GT(timing.overhead.value.uncertainty_seconds, 0);
  EXPECT_LT(timing.overhead.value.uncertainty_seconds, 0.5e-6);
  EXPECT_EQ(timing.overhead.reason, "");
  for (const double seconds : samples.seconds()) {
    EXPECT_NEAR(seconds, kKnown, 5e-6);
  }
}

// An empty kernel takes 0.6 us by CUPTI, so this one takes a little longer than it sleeps.
TEST_F(GpuTimingTest, AutoTimesAKernelOfKnownDurationByCuptiAndKnowsItsClock) {
  const Timing timing = time_kernel();
  EXPECT_EQ(timing.method.value, Method::kKernel);
  EXPECT_EQ(timing.regime.value, Regime::kAsIs);
  EXPECT_EQ(timing.regime.reason, "the clock did not fall under the calls");
  EXPECT_TRUE(timing.samples.steady);
  const CandidateSamples& samples = timing.samples.candidates[0];
  const std::vector<ActivityColumn> columns =
      tabulate(column(samples.samples, &Sample::activities));
  ASSERT_EQ(columns.size(), 1U);
  EXPECT_TRUE(contains(std::string(columns[0].info.name), "sleep_kernel"));
  EXPECT_EQ(columns[0].seconds, samples.seconds());
  for (const double seconds : samples.seconds()) {
    EXPECT_GE(seconds, kKnown);
    EXPECT_LE(seconds, kKnown + 3e-6);
  }
  ASSERT_EQ(samples.sm_clocks_hz().size(), samples.samples.size());
  for (const double clock_hz : samples.sm_clocks_hz()) {
    EXPECT_GT(clock_hz, 1e8);
    EXPECT_LT(clock_hz, 1.02 * timing.max_sm_clock_hz.value());
  }
}

TEST_F(GpuTimingTest, CuptiSeesCopiesAndMemsets) {
  constexpr std::size_t kBytes = 1 << 20;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 2 * kBytes), cudaSuccess);
  FunctionCallable call([&] {
    cudaMemsetAsync(data, 0, kBytes, nullptr);
    cudaMemcpyAsync(static_cast<char*>(data) + kBytes, data, kBytes / 2, cudaMemcpyDeviceToDevice,
                    nullptr);
  });
  const Timing timing = time_on_gpu(call, {.method = Method::kKernel});
  const CandidateSamples& samples = timing.samples.candidates[0];
  const std::vector<ActivityColumn> columns =
      tabulate(column(samples.samples, &Sample::activities));
  ASSERT_EQ(columns.size(), 2U);
  EXPECT_EQ(columns[0].info.kind, ActivityKind::kMemset);
  EXPECT_EQ(columns[0].info.bytes, kBytes);
  EXPECT_EQ(columns[1].info.kind, ActivityKind::kMemcpy);
  EXPECT_EQ(columns[1].info.bytes, kBytes / 2);
  for (const Sample& sample : samples.samples) {
    EXPECT_GE(span_seconds(sample.activities.value()), sample.seconds);
  }
  cudaFree(data);
}

TEST_F(GpuTimingTest, KernelTimesAreRefusedWhereCuptiIsTaken) {
  const CuptiSession session;
  EXPECT_THROW(KernelTimer(Metric::kBusy, nullptr, {}, [] {}), std::runtime_error);
}

TEST_F(GpuTimingTest, CallsWithoutGpuWorkAreLeftToTheHostsClock) {
  FunctionCallable nothing([] {});
  const Timing timing = time_on_gpu(nothing);
  EXPECT_EQ(timing.method.value, Method::kCpu);
  EXPECT_EQ(timing.method.reason, "the calls issue no work to the GPU");
  EXPECT_THROW(time_on_gpu(nothing, {.method = Method::kKernel}), std::invalid_argument);

  KnownKernel kernel;
  for (const bool first : {false, true}) {  // and beside others to 0
    Callable* const candidates[] = {first ? &nothing : static_cast<Callable*>(&kernel),
                                    first ? static_cast<Callable*>(&kernel) : &nothing};
    const Timing beside = time_candidates(candidates, {.on_gpu = true});
    EXPECT_EQ(beside.method.value, Method::kKernel);
    EXPECT_NEAR(median(beside.samples.candidates[first ? 1 : 0].seconds()), kKnown, 5e-6);
    EXPECT_EQ(median(beside.samples.candidates[first ? 0 : 1].seconds()), 0);
  }
}

TEST_F(GpuTimingTest, GatesAreNeverOverfilledByCallsOfManyLaunches) {
  FunctionCallable kernels([] {
    for (int i = 0; i < 300; ++i) {
      launch_sleep(100, nullptr);
    }
  });
  for (const Method method : {Method::kKernel, Method::kEvent}) {
    const Timing timing = time_on_gpu(kernels, {.method = method, .stop = {.max_samples = 100}});
    EXPECT_EQ(timing.queue.value, Queue::kGate) << timing.queue.reason;
    EXPECT_TRUE(timing.samples.candidates[0].discarded.empty()) << to_string(method);
  }
}

TEST_F(GpuTimingTest, CalibrationThatFailsLeavesTheSamplesAsTheyAre) {
  TimingOptions options{.method = Method::kEvent};
  options.calibration_reference = []() -> std::unique_ptr<Callable> {
    throw std::runtime_error("out of memory");
  };
  const Timing timing = time_kernel(options);
  EXPECT_EQ(timing.overhead.reason, "out of memory");
  EXPECT_EQ(timing.overhead.value.seconds, 0);
  EXPECT_FALSE(timing.samples.candidates[0].samples.at(0).raw_seconds.has_value());
  EXPECT_NEAR(median(timing.samples.candidates[0].seconds()), kKnown, 10e-6);
}

TEST_F(GpuTimingTest, CalibrationWaitsThroughTheHostsHookAndTakesItsMemoryFromTheCaller) {
  for (const Queue queue : {Queue::kGate, Queue::kNone}) {
    int waiting = 0;
    int calibrations = 0;
    std::size_t allocated = 0;
    TimingOptions options{.method = Method::kEvent, .queue = queue};
    options.hooks.wait = [&](const std::function<void()>& blocking) {
      ++waiting;
      EXPECT_EQ(waiting, 1) << "waits in a wait";
      blocking();
      --waiting;
    };
    options.calibration_reference = [&]() -> std::unique_ptr<Callable> {
      EXPECT_EQ(waiting, 1);
      ++calibrations;
      return std::make_unique<FunctionCallable>([] { launch_sleep(4000, nullptr); });
    };
    options.allocate = [&](std::size_t bytes) -> std::shared_ptr<void> {
      ++allocated;
      void* data = nullptr;
      CONVTIME_CUDA_CHECK(cudaMalloc(&data, bytes));
      return {data, [](void* memory) { cudaFree(memory); }};
    };
    const Timing timing = time_kernel(options);
    EXPECT_EQ(timing.overhead.reason, "");
    EXPECT_GT(timing.overhead.value.seconds, 0);
    EXPECT_GE(calibrations, 2);  // before sampling and after it
    EXPECT_GE(allocated, 1U + static_cast<std::size_t>(calibrations));
  }
}

TEST_F(GpuTimingTest, HostTimersTimeAKernelOfKnownDuration) {
  const Timing timing = time_kernel({.method = Method::kSync});
  EXPECT_EQ(timing.queue.value, Queue::kNone);
  EXPECT_GE(timing.samples.candidates[0].samples[0].seconds, kKnown);
  EXPECT_LE(timing.samples.candidates[0].samples[0].seconds, kKnown + 200e-6);
  EXPECT_EQ(time_kernel({.method = Method::kCpu}).regime.reason,
            "method 'cpu' times the host, and not the GPU");
}

TEST_F(GpuTimingTest, ProbeReadsARatePossibleForTheDevice) {
  SmClockProbe probe(nullptr, 2, 0);
  for (int i = 0; i < 2; ++i) {
    probe.stamp();
  }
  probe.finish();
  std::vector<double> clocks_hz(2);
  probe.collect(clocks_hz);
  clocks_hz.push_back(probe.idle_clock_hz());
  for (const double clock_hz : clocks_hz) {
    EXPECT_GT(clock_hz, 1e8);
    EXPECT_LT(clock_hz, 1.02 * max_sm_clock_hz());
  }
  probe.stamp();
  probe.stamp();
  EXPECT_THROW(probe.stamp(), std::logic_error);
}

TEST_F(GpuTimingTest, RegimesAreReachedWithLightWork) {
  for (const Regime regime : {Regime::kBurst, Regime::kSustained}) {
    const Timing timing = time_kernel({.regime = regime});
    EXPECT_EQ(timing.regime.value, regime) << timing.regime.reason;
    EXPECT_EQ(timing.samples.idle_seconds > 0, regime == Regime::kBurst);
    EXPECT_NEAR(median(timing.samples.candidates[0].seconds()), kKnown, 5e-6);
  }
}

TEST_F(GpuTimingTest, SleepHoldsTheStreamAndLetsGoByItself) {
  SleepHold hold(nullptr);
  hold.hold(0.05);
  EXPECT_TRUE(hold.release());
  hold.hold(0.05);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_FALSE(hold.release());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(GpuTimingTest, GateHoldsTheStreamUntilItIsReleasedAndDoesNotWaitForTheWorkBefore) {
  GateHold gate(nullptr);
  gate.hold(5);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  double start = now_seconds();
  EXPECT_TRUE(gate.release());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(now_seconds() - start, 0.1);

  SleepHold work(nullptr);
  work.hold(0.3);
  start = now_seconds();
  gate.hold(5);
  EXPECT_LT(now_seconds() - start, 0.1);
  EXPECT_TRUE(gate.release());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(GpuTimingTest, GatesHoldEachTimeWhereTheyAreUsedAgain) {
  for (int i = 0; i < 50; ++i) {
    GateHold gate(nullptr);
    GateHold beside(nullptr);
    for (GateHold* const held : {&gate, &beside}) {
      held->hold(5);
      EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
      EXPECT_TRUE(held->release());
    }
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(GpuTimingTest, GateOpensByItselfAtItsDeadline) {
  GateHold gate(nullptr);
  gate.hold(0.05);
  const double start = now_seconds();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_GE(now_seconds() - start, 0.04);
  EXPECT_LT(now_seconds() - start, 0.5);
  EXPECT_FALSE(gate.release());
  gate.hold(0.05);
  EXPECT_TRUE(gate.release());  // and works again
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(GpuTimingTest, AWaiterSaysWhenTheDeviceWasIdleAndGivesUpInTime) {
  DeviceWaiter waiter;
  SleepHold work(nullptr);
  work.hold(0.3);
  EXPECT_FALSE(waiter.wait({}, 0.01).has_value());
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  // Longer than the clock's range.
  const auto idle_at = waiter.wait({}, 1e10);
  ASSERT_TRUE(idle_at.has_value());
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess);
  EXPECT_LT(std::chrono::duration<double>(DeviceWaiter::Clock::now() - *idle_at).count(), 0.1);
  EXPECT_TRUE(waiter.wait({}, 1).has_value());
}

TEST_F(GpuTimingTest, HoldsAreGivenUpForCallsThatWaitForTheGpu) {
  FunctionCallable waits([] { cudaDeviceSynchronize(); });
  for (const Queue queue : {Queue::kGate, Queue::kSleep}) {
    const double start = now_seconds();
    const Timing timing = time_on_gpu(waits, {.method = Method::kEvent, .queue = queue});
    EXPECT_EQ(timing.queue.value, Queue::kNone);
    EXPECT_NE(timing.queue.reason, "");
    EXPECT_FALSE(timing.samples.candidates[0].samples.empty());
    EXPECT_LT(now_seconds() - start, 2);
  }
}

TEST_F(GpuTimingTest, EventsRefuseMoreCallsThanTheyArePreparedFor) {
  EventTimer timer(nullptr, 1);
  FunctionCallable nothing([] {});
  Callable* const calls[] = {&nothing, &nothing};
  EXPECT_THROW(timer.run(calls), std::out_of_range);
}

}  // namespace
}  // namespace convtime
