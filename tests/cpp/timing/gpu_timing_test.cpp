#include "timing/timers/event_timer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu.h"
#include "kernels/known_duration/known_duration.h"
#include "timing/clock.h"
#include "timing/conditions/cache_flush.h"
#include "timing/conditions/gate_hold.h"
#include "timing/conditions/persisting_l2.h"
#include "timing/conditions/sleep_hold.h"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/judge/statistics.h"
#include "timing/time_op.h"
#include "timing/timers/graph_timer.h"
#include "timing/timers/kernel_timer.h"
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

TEST(EventTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.method = Method::kEvent, .on_gpu = true});
  EXPECT_EQ(timing.queue.value, Queue::kGate);
  ASSERT_EQ(timing.samples.candidates[0].raw_seconds.size(),
            timing.samples.candidates[0].seconds.size());
  EXPECT_NEAR(timing.samples.candidates[0].raw_seconds[0] - timing.samples.candidates[0].seconds[0],
              timing.overhead.value.seconds, 1e-12);
  EXPECT_GT(timing.overhead.value.seconds, 0.5e-6);
  EXPECT_LT(timing.overhead.value.seconds, 10e-6);
  EXPECT_GT(timing.overhead.value.uncertainty_seconds, 0);
  EXPECT_LT(timing.overhead.value.uncertainty_seconds, 0.5e-6);
  EXPECT_EQ(timing.overhead.reason, "");
  for (const double seconds : timing.samples.candidates[0].seconds) {
    EXPECT_NEAR(seconds, kKnown, 5e-6);
  }
}

// An empty kernel takes 0.6 us by CUPTI, so this one takes a little longer than it sleeps.
TEST(KernelTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.method = Method::kKernel, .on_gpu = true});
  EXPECT_EQ(timing.method.value, Method::kKernel);
  const std::vector<ActivityColumn> columns = tabulate(timing.samples.candidates[0].activities);
  ASSERT_EQ(columns.size(), 1U);
  EXPECT_NE(columns[0].info.name.find("sleep_kernel"), std::string::npos);
  EXPECT_EQ(columns[0].seconds, timing.samples.candidates[0].seconds);
  for (const double seconds : timing.samples.candidates[0].seconds) {
    EXPECT_GE(seconds, kKnown);
    EXPECT_LE(seconds, kKnown + 3e-6);
  }
}

TEST(KernelTimer, SeesCopiesAndMemsets) {
  SKIP_WITHOUT_GPU();
  constexpr std::size_t kBytes = 1 << 20;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 2 * kBytes), cudaSuccess);
  FunctionCallable call([&] {
    cudaMemsetAsync(data, 0, kBytes, nullptr);
    cudaMemcpyAsync(static_cast<char*>(data) + kBytes, data, kBytes / 2, cudaMemcpyDeviceToDevice,
                    nullptr);
  });
  Callable* const candidates[] = {&call};
  const Timing timing = time_candidates(candidates, {.method = Method::kKernel, .on_gpu = true});
  const std::vector<ActivityColumn> columns = tabulate(timing.samples.candidates[0].activities);
  ASSERT_EQ(columns.size(), 2U);
  EXPECT_EQ(columns[0].info.kind, ActivityKind::kMemset);
  EXPECT_EQ(columns[0].info.bytes, kBytes);
  EXPECT_EQ(columns[1].info.kind, ActivityKind::kMemcpy);
  EXPECT_EQ(columns[1].info.bytes, kBytes / 2);
  const CandidateSamples& samples = timing.samples.candidates[0];
  for (std::size_t i = 0; i < samples.seconds.size(); ++i) {
    EXPECT_GE(span_seconds(samples.activities.at(i)), samples.seconds[i]);
  }
  cudaFree(data);
}

TEST(KernelTimer, IsWhatAutoChooses) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  EXPECT_EQ(time_candidates(candidates, {.on_gpu = true}).method.value, Method::kKernel);
}

TEST(KernelTimer, IsRefusedWhereItIsTaken) {
  SKIP_WITHOUT_GPU();
  const CuptiSession session;
  EXPECT_THROW(KernelTimer(Metric::kBusy, nullptr, {}, [] {}), std::runtime_error);
}

TEST(KernelTimer, LeavesCallsWithoutGpuWorkToTheHostsClock) {
  SKIP_WITHOUT_GPU();
  FunctionCallable nothing([] {});
  Callable* const candidates[] = {&nothing};
  const Timing timing = time_candidates(candidates, {.on_gpu = true});
  EXPECT_EQ(timing.method.value, Method::kCpu);
  EXPECT_EQ(timing.method.reason, "the calls issue no work to the GPU");
  EXPECT_THROW(time_candidates(candidates, {.method = Method::kKernel, .on_gpu = true}),
               std::invalid_argument);
}

TEST(KernelTimer, KeepsItsTimesBesideACallWithoutGpuWork) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  FunctionCallable nothing([] {});
  for (const bool first : {false, true}) {
    Callable* const candidates[] = {first ? &nothing : static_cast<Callable*>(&kernel),
                                    first ? static_cast<Callable*>(&kernel) : &nothing};
    const Timing timing = time_candidates(candidates, {.on_gpu = true});
    EXPECT_EQ(timing.method.value, Method::kKernel);
    EXPECT_NEAR(median(timing.samples.candidates[first ? 1 : 0].seconds), kKnown, 5e-6);
    EXPECT_EQ(median(timing.samples.candidates[first ? 0 : 1].seconds), 0);
  }
}

/// Calls of a few hundred kernels each.
class ManyKernels final : public Callable {
 public:
  void call() override {
    for (int i = 0; i < 300; ++i) {
      launch_sleep(100, nullptr);
    }
  }
};

TEST(GateHold, IsNeverOverfilledByCallsOfManyLaunches) {
  SKIP_WITHOUT_GPU();
  for (const Method method : {Method::kKernel, Method::kEvent}) {
    ManyKernels kernels;
    Callable* const candidates[] = {&kernels};
    const Timing timing = time_candidates(
        candidates, {.method = method, .on_gpu = true, .stop = {.max_samples = 100}});
    EXPECT_EQ(timing.queue.value, Queue::kGate) << timing.queue.reason;
    EXPECT_TRUE(timing.samples.candidates[0].discarded.empty()) << to_string(method);
  }
}

TEST(Calibration, ThatFailsLeavesTheSamplesAsTheyAre) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  TimingOptions options{.method = Method::kEvent, .on_gpu = true};
  options.calibration_reference = []() -> std::unique_ptr<Callable> {
    throw std::runtime_error("out of memory");
  };
  const Timing timing = time_candidates(candidates, options);
  EXPECT_EQ(timing.overhead.reason, "out of memory");
  EXPECT_EQ(timing.overhead.value.seconds, 0);
  EXPECT_TRUE(timing.samples.candidates[0].raw_seconds.empty());
  EXPECT_NEAR(median(timing.samples.candidates[0].seconds), kKnown, 10e-6);
}

TEST(Calibration, WaitsThroughTheHostsHookAndTakesItsMemoryFromTheCaller) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  for (const Queue queue : {Queue::kGate, Queue::kNone}) {
    int waiting = 0;
    int calibrations = 0;
    std::size_t allocated = 0;
    TimingOptions options{.method = Method::kEvent, .queue = queue, .on_gpu = true};
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
    const Timing timing = time_candidates(candidates, options);
    EXPECT_EQ(timing.overhead.reason, "");
    EXPECT_GT(timing.overhead.value.seconds, 0);
    EXPECT_GE(calibrations, 2);  // before sampling and after it
    EXPECT_GE(allocated, 1U + static_cast<std::size_t>(calibrations));
  }
}

TEST(SyncTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.method = Method::kSync, .on_gpu = true});
  EXPECT_EQ(timing.queue.value, Queue::kNone);
  EXPECT_GE(timing.samples.candidates[0].seconds[0], kKnown);
  EXPECT_LE(timing.samples.candidates[0].seconds[0], kKnown + 200e-6);
}

class RawGraph final : public DeviceGraph {
 public:
  explicit RawGraph(cudaGraph_t graph) {
    CONVTIME_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
  }
  ~RawGraph() override { cudaGraphExecDestroy(executable_); }
  void replay() override { CONVTIME_CUDA_CHECK(cudaGraphLaunch(executable_, nullptr)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Records without an allocator: enough for kernels that have their memory already.
class RawRecorder {
 public:
  std::unique_ptr<DeviceGraph> operator()(const std::function<void(void*)>& work) {
    CONVTIME_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work(stream);
    cudaGraph_t graph = nullptr;
    CONVTIME_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    auto result = std::make_unique<RawGraph>(graph);
    cudaGraphDestroy(graph);
    return result;
  }

  cudaStream_t stream = nullptr;
};

TEST(GraphTimer, TimesAKernelOfKnownDuration) {
  SKIP_WITHOUT_GPU();
  RawRecorder recorder;
  CONVTIME_CUDA_CHECK(cudaStreamCreate(&recorder.stream));
  FlushBuffer flush{nullptr, flush_buffer_bytes(0)};
  CONVTIME_CUDA_CHECK(cudaMalloc(&flush.data, flush.bytes));
  void* stamps = nullptr;
  CONVTIME_CUDA_CHECK(cudaMalloc(&stamps, 2 * sizeof(std::int64_t)));
  constexpr std::uint64_t kNanoseconds = 20'000;
  // Outside of a capture the default stream, inside the recorder's.
  FunctionCallable spin([&] {
    cudaStreamCaptureStatus status{};
    CONVTIME_CUDA_CHECK(cudaStreamIsCapturing(recorder.stream, &status));
    const bool capturing = status == cudaStreamCaptureStatusActive;
    launch_spin(kNanoseconds, 1, 1, static_cast<std::int64_t*>(stamps),
                capturing ? recorder.stream : nullptr);
  });
  Callable* const candidates[] = {&spin};
  TimingOptions options{.method = Method::kGraph, .on_gpu = true};
  options.graph_recorder = std::ref(recorder);
  for (const std::optional<L2Lines> cold :
       {std::optional<L2Lines>(), {L2Lines::kDirty}, {L2Lines::kClean}}) {
    if (cold.has_value()) {
      flush.leaves = *cold;
      options.flush = {flush};
    }
    const Timing timing = time_candidates(candidates, options);
    EXPECT_EQ(timing.queue.value, Queue::kGate);
    EXPECT_EQ(timing.samples.candidates[0].raw_seconds.size(),
              timing.samples.candidates[0].seconds.size());
    // By CUPTI such a kernel takes 0.6 us more than it spins.
    EXPECT_NEAR(quantile(timing.samples.candidates[0].seconds, 0.5), kNanoseconds * 1e-9 + 0.6e-6,
                0.5e-6);
  }
  cudaFree(stamps);
  cudaFree(flush.data);
  cudaStreamDestroy(recorder.stream);
}

TEST(GraphTimer, SaysWhatCannotBeCaptured) {
  SKIP_WITHOUT_GPU();
  RawRecorder recorder;
  CONVTIME_CUDA_CHECK(cudaStreamCreate(&recorder.stream));
  FunctionCallable waits([&] { CONVTIME_CUDA_CHECK(cudaStreamSynchronize(recorder.stream)); });
  GraphTimer timer({.recorder = std::ref(recorder)}, 1);
  Callable* const calls[] = {&waits};
  try {
    timer.run(calls);
    FAIL() << "captured what cannot be";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("cudaStreamSynchronize"), std::string::npos);
  }
  cudaGraph_t broken = nullptr;
  cudaStreamEndCapture(recorder.stream, &broken);
  (void)cudaGetLastError();
  cudaStreamDestroy(recorder.stream);
}

TEST(SmClockProbe, ReadsARatePossibleForTheDevice) {
  SKIP_WITHOUT_GPU();
  SmClockProbe probe(nullptr, 2, 0);
  for (int i = 0; i < 2; ++i) {
    probe.stamp();
  }
  probe.finish();
  std::vector<double> clocks_hz(2);
  probe.collect(clocks_hz);
  for (const double clock_hz : clocks_hz) {
    EXPECT_GT(clock_hz, 1e8);
    EXPECT_LT(clock_hz, 1.02 * max_sm_clock_hz());
  }
  const double idle_hz = probe.idle_clock_hz();
  EXPECT_GT(idle_hz, 1e8);
  EXPECT_LT(idle_hz, 1.02 * max_sm_clock_hz());
  probe.stamp();
  probe.stamp();
  EXPECT_THROW(probe.stamp(), std::logic_error);
}

TEST(TimeCandidates, KnowTheClockOfEverySample) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.on_gpu = true});
  ASSERT_EQ(timing.samples.candidates[0].sm_clocks_hz.size(),
            timing.samples.candidates[0].seconds.size());
  for (const double clock_hz : timing.samples.candidates[0].sm_clocks_hz) {
    EXPECT_GT(clock_hz, 1e8);
    EXPECT_LT(clock_hz, 1.02 * timing.max_sm_clock_hz.value());
  }
}

TEST(TimeCandidates, LeaveTheDeviceAloneWhereItsClockStaysUp) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  const Timing timing = time_candidates(candidates, {.on_gpu = true});
  EXPECT_EQ(timing.regime.value, Regime::kAsIs);
  EXPECT_EQ(timing.regime.reason, "the clock did not fall under the calls");
  EXPECT_TRUE(timing.samples.steady);
  const Timing host = time_candidates(candidates, {.method = Method::kCpu, .on_gpu = true});
  EXPECT_EQ(host.regime.reason, "method 'cpu' times the host, and not the GPU");
}

TEST(TimeCandidates, ReachARegimeWithLightWork) {
  SKIP_WITHOUT_GPU();
  KnownKernel kernel;
  Callable* const candidates[] = {&kernel};
  for (const Regime regime : {Regime::kBurst, Regime::kSustained}) {
    const Timing timing = time_candidates(candidates, {.on_gpu = true, .regime = regime});
    EXPECT_EQ(timing.regime.value, regime) << timing.regime.reason;
    EXPECT_EQ(timing.samples.idle_seconds > 0, regime == Regime::kBurst);
    EXPECT_NEAR(median(timing.samples.candidates[0].seconds), kKnown, 5e-6);
  }
}

TEST(SleepHold, HoldsTheStreamAndLetsGoByItself) {
  SKIP_WITHOUT_GPU();
  SleepHold hold(nullptr);
  hold.hold(0.05);
  EXPECT_TRUE(hold.release());
  hold.hold(0.05);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_FALSE(hold.release());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(GateHold, HoldsTheStreamUntilItIsReleased) {
  SKIP_WITHOUT_GPU();
  GateHold gate(nullptr);
  gate.hold(5);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  const double start = now_seconds();
  EXPECT_TRUE(gate.release());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(now_seconds() - start, 0.1);
}

TEST(GateHold, DoesNotWaitForTheWorkBeforeIt) {
  SKIP_WITHOUT_GPU();
  GateHold gate(nullptr);
  gate.hold(5);
  EXPECT_TRUE(gate.release());
  SleepHold work(nullptr);
  work.hold(0.3);
  const double start = now_seconds();
  gate.hold(5);
  EXPECT_LT(now_seconds() - start, 0.1);
  EXPECT_TRUE(gate.release());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(GateHold, IsHeldEachTimeWhereGatesAreUsedAgain) {
  SKIP_WITHOUT_GPU();
  for (int i = 0; i < 50; ++i) {
    GateHold gate(nullptr);
    GateHold beside(nullptr);
    gate.hold(5);
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    EXPECT_TRUE(gate.release());
    beside.hold(5);
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    EXPECT_TRUE(beside.release());
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(GateHold, OpensByItselfAtItsDeadline) {
  SKIP_WITHOUT_GPU();
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

TEST(QueueHold, IsGivenUpForCallsThatWaitForTheGpu) {
  SKIP_WITHOUT_GPU();
  for (const Queue queue : {Queue::kGate, Queue::kSleep}) {
    FunctionCallable waits([] { cudaDeviceSynchronize(); });
    Callable* const candidates[] = {&waits};
    const double start = now_seconds();
    const Timing timing =
        time_candidates(candidates, {.method = Method::kEvent, .queue = queue, .on_gpu = true});
    EXPECT_EQ(timing.queue.value, Queue::kNone);
    EXPECT_NE(timing.queue.reason, "");
    EXPECT_FALSE(timing.samples.candidates[0].seconds.empty());
    EXPECT_LT(now_seconds() - start, 2);
  }
}

TEST(ColdCallable, EvictsWhatTheCallReads) {
  SKIP_WITHOUT_GPU();
  constexpr std::size_t kBytes = 16 << 20;  // fits in the cache of any recent GPU
  void* source = nullptr;
  void* target = nullptr;
  FlushBuffer flush{nullptr, flush_buffer_bytes(0, L2Lines::kClean)};
  ASSERT_EQ(cudaMalloc(&source, kBytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&target, kBytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&flush.data, flush.bytes), cudaSuccess);
  FunctionCallable copy(
      [&] { cudaMemcpyAsync(target, source, kBytes, cudaMemcpyDeviceToDevice, nullptr); });
  Callable* const candidates[] = {&copy};
  TimingOptions options{.method = Method::kKernel, .on_gpu = true};
  const double warm =
      quantile(time_candidates(candidates, options).samples.candidates[0].seconds, 0.5);
  for (const L2Lines left : {L2Lines::kDirty, L2Lines::kClean}) {
    flush.leaves = left;
    options.flush = {flush};
    const Timing cold = time_candidates(candidates, options);
    EXPECT_GT(quantile(cold.samples.candidates[0].seconds, 0.5), 1.2 * warm);
    EXPECT_EQ(tabulate(cold.samples.candidates[0].activities).size(),
              1U);  // the flush is not part of the call
  }
  cudaFree(source);
  cudaFree(target);
  cudaFree(flush.data);
}

std::size_t l2_bytes_set_aside() {
  std::size_t bytes = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetLimit(&bytes, cudaLimitPersistingL2CacheSize));
  return bytes;
}

TEST(WithoutPersistingL2, GivesTheCacheBackAndSetsItAsideAgain) {
  SKIP_WITHOUT_GPU();
  ASSERT_EQ(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 4 << 20), cudaSuccess);
  const std::size_t before = l2_bytes_set_aside();
  ASSERT_GT(before, 0U);
  {
    const WithoutPersistingL2 without(0);
    EXPECT_EQ(l2_bytes_set_aside(), 0U);
    EXPECT_EQ(without.reason(), "");
  }
  EXPECT_EQ(l2_bytes_set_aside(), before);
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0);
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
