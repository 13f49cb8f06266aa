#include "timing/trace/cupti_session.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/cupti_check.h"
#include "gpu.h"
#include "helpers.h"
#include "kernels/known_duration/known_duration.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_buffers.h"
#include "timing/trace/cupti_records.h"

namespace convtime {
namespace {

constexpr std::uint64_t kCycles = 100'000;

void launch(int kernels, std::uint64_t cycles = kCycles) {
  for (int i = 0; i < kernels; ++i) {
    launch_sleep(cycles, nullptr);
  }
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
}

/// How many of the kernels that calls launch a session sees.
std::size_t kernels_seen(CuptiSession& session, const std::function<void()>& calls) {
  const std::uint64_t start = CuptiSession::now();
  calls();
  const Window window{start, start, CuptiSession::now()};
  const Attribution seen = session.take({&window, 1});
  EXPECT_EQ(seen.faults.describe(), "");
  return static_cast<std::size_t>(std::count_if(
      seen.calls[0].begin(), seen.calls[0].end(),
      [](const DeviceActivity& activity) { return activity.info.kind == ActivityKind::kKernel; }));
}

std::size_t kernels_seen(CuptiSession& session, int launches) {
  return kernels_seen(session, [launches] { launch(launches); });
}

Timing time_known_kernel() {
  FunctionCallable kernel([] { launch_sleep(kCycles, nullptr); });
  return time_on_gpu(kernel, {.method = Method::kKernel});
}

/// Has a profiler be active for as long as it lives, as far as is told.
class ToldOfAProfiler {
 public:
  ToldOfAProfiler() {
    set_profiler_check([] { return true; });
  }
  ~ToldOfAProfiler() { set_profiler_check(nullptr); }
};

void expect_all_of_it(const Timing& timing) {
  const CandidateSamples& samples = timing.samples.candidates[0];
  const std::vector<ActivityColumn> columns =
      tabulate(column(samples.samples, &Sample::activities));
  ASSERT_EQ(columns.size(), 1U);
  EXPECT_NE(columns[0].name.find("sleep"), std::string::npos);
  const double longest = kCycles / 0.5e9;  // no GPU in use has a clock below
  for (const double seconds : samples.seconds()) {
    EXPECT_GE(seconds, kCycles / (1.02 * timing.max_sm_clock_hz.value()));
    EXPECT_LE(seconds, longest);
  }
}

#if CUPTI_API_VERSION >= 130200

/// Another tool, with a subscription of its own to CUPTI, that counts kernels.
class OtherTool {
 public:
  /// Whether CUPTI lets it subscribe.
  bool subscribe(bool shares) {
    const auto subscribe = load<decltype(&cuptiSubscribe_v2)>("cuptiSubscribe_v2");
    const auto on_buffers =
        load<decltype(&cuptiActivityRegisterCallbacks_v2)>("cuptiActivityRegisterCallbacks_v2");
    const auto enable = load<decltype(&cuptiActivityEnable_v2)>("cuptiActivityEnable_v2");
    if (subscribe == nullptr || on_buffers == nullptr || enable == nullptr) {
      return false;
    }
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "other-tool";
    params.allowMultipleSubscribers = shares ? 1 : 0;
    if (subscribe(&subscriber_, ignore, nullptr, &params) != CUPTI_SUCCESS) {
      subscriber_ = nullptr;
      return false;
    }
    kernels = 0;
    reader = subscriber_;
    CONVTIME_CUPTI_CHECK(on_buffers(subscriber_, on_requested, on_completed));
    CONVTIME_CUPTI_CHECK(enable(subscriber_, kKind, nullptr));
    return true;
  }

  /// Kernels seen so far.
  int seen() {
    CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(0));
    return kernels;
  }

  void unsubscribe() {
    if (subscriber_ != nullptr) {
      CONVTIME_CUPTI_WARN(load<decltype(&cuptiActivityDisable_v2)>("cuptiActivityDisable_v2")(
          subscriber_, kKind, nullptr));
      CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
      CONVTIME_CUPTI_WARN(cuptiUnsubscribe(subscriber_));
      subscriber_ = nullptr;
    }
  }

  ~OtherTool() { unsubscribe(); }

 private:
  static constexpr CUpti_ActivityKind kKind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  static inline std::atomic<int> kernels = 0;
  static inline std::atomic<CUpti_SubscriberHandle> reader = nullptr;

  template <typename Function>
  static Function load(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }

  static void CUPTIAPI ignore(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

  static void CUPTIAPI on_requested(uint8_t** buffer, size_t* size, size_t* max_records,
                                    CUpti_BufferCallbackRequestInfo*) {
    *size = 1 << 20;
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
    *max_records = 0;
  }

  static void CUPTIAPI on_completed(uint8_t* buffer, size_t, size_t valid,
                                    CUpti_BufferCallbackCompleteInfo*) {
    using Next = CUptiResult (*)(CUpti_SubscriberHandle, uint8_t*, size_t, CUpti_Activity**);
    static const Next next = load<Next>("cuptiActivityGetNextRecord_v2");  // from 13.3 on
    CUpti_Activity* record = nullptr;
    while ((next == nullptr ? cuptiActivityGetNextRecord(buffer, valid, &record)
                            : next(reader, buffer, valid, &record)) == CUPTI_SUCCESS) {
      kernels += record->kind == kKind ? 1 : 0;
    }
    std::free(buffer);
  }

  CUpti_SubscriberHandle subscriber_ = nullptr;
};

#else

class OtherTool {
 public:
  bool subscribe(bool) { return false; }
  int seen() { return 0; }
  void unsubscribe() {}
};

#endif

using CuptiTest = GpuTest;  // some versions of CUPTI crash without a driver

#define SKIP_UNLESS(subscribed)                                                     \
  do {                                                                              \
    if (!(subscribed)) {                                                            \
      GTEST_SKIP() << "this CUPTI, or its driver, does not let the tool subscribe"; \
    }                                                                               \
  } while (false)

TEST_F(CuptiTest, FunctionsAreToldApartByTheirNames) {
  const std::map<std::string, ApiKind> expected = {
      {"cudaLaunchKernel_v7000", ApiKind::kLaunch},
      {"cudaLaunchCooperativeKernel_v9000", ApiKind::kLaunch},
      {"cudaLaunchKernelExC_v11060", ApiKind::kLaunch},
      {"cuLaunchKernelEx", ApiKind::kLaunch},
      {"cudaGraphLaunch_v10000", ApiKind::kGraphLaunch},
      {"cudaMemsetAsync_v3020", ApiKind::kTransfer},
      {"cudaMemcpyPeerAsync_v4000", ApiKind::kTransfer},
      {"cuMemcpyBatchAsync_v2", ApiKind::kTransfer},
      {"cuMemcpyWithAttributesAsync", ApiKind::kTransfer},  // from 13.2 on
      {"cudaStreamBeginCapture_v10000", ApiKind::kBeginCapture},
      {"cuStreamEndCapture", ApiKind::kEndCapture},
      {"cudaGraphAddMemcpyNode_v10000", ApiKind::kOther},
      {"cuLaunchHostFunc", ApiKind::kUnrecorded},
      {"cuMemPrefetchAsync", ApiKind::kUnrecorded},
      {"cuStreamWriteValue32", ApiKind::kUnrecorded},
      {"cudaFuncSetAttribute_v9000", ApiKind::kOther},
      {"cudaMalloc_v3020", ApiKind::kOther},
  };
  std::size_t seen = 0;
  for (const auto& [domain, functions] :
       {std::pair(CUPTI_CB_DOMAIN_RUNTIME_API, &CuptiFunctions::of_runtime()),
        std::pair(CUPTI_CB_DOMAIN_DRIVER_API, &CuptiFunctions::of_driver())}) {
    for (CUpti_CallbackId function = 1; function < 900; ++function) {
      const char* name = nullptr;
      if (cuptiGetCallbackName(domain, function, &name) != CUPTI_SUCCESS || name == nullptr) {
        continue;
      }
      if (const auto found = expected.find(name); found != expected.end()) {
        EXPECT_EQ(functions->kind(function), found->second) << name;
        ++seen;
      }
    }
  }
  EXPECT_GE(seen, expected.size() - 1);
}

TEST(CuptiSession, SaysWhatIsMissingWithoutADriver) {
  if (cuda_available()) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  EXPECT_FALSE(CuptiSession::shared());
  ASSERT_NE(CuptiSession::unavailable(), "");
  EXPECT_EQ(error_of<std::runtime_error>([] { const CuptiSession session; }),
            CuptiSession::unavailable());
}

TEST_F(CuptiTest, SeesWhatIsDoneWithinIt) {
  launch(1);
  EXPECT_FALSE(CuptiSession::shared());
  for (int round = 0; round < 3; ++round) {
    CuptiSession session;
    EXPECT_FALSE(CuptiSession::shared());
    EXPECT_EQ(kernels_seen(session, 5), 5U);
    EXPECT_EQ(kernels_seen(session, 2), 2U);
  }
}

TEST_F(CuptiTest, SeesNothingOfWhatIsIssuedWhileItPauses) {
  CuptiSession session;
  for (int round = 0; round < 2; ++round) {
    const std::size_t seen = kernels_seen(session, [&session] {
      session.pause();
      launch(5);
      session.resume();
      launch(3);
    });
    EXPECT_EQ(seen, 3U);
  }
}

TEST_F(CuptiTest, EndsWhereAProfilerAsksForItsWayAndBeginsAnewBehindIt) {
  {
    CuptiSession session;
    EXPECT_EQ(kernels_seen(session, 2), 2U);
    {
      const MakeWay way;
      EXPECT_THROW(session.take({}), TraceLost);
      EXPECT_THROW(CuptiSession(), std::runtime_error);
      EXPECT_NE(CuptiSession::taken(), "");
    }
    EXPECT_EQ(CuptiSession::taken(), "");
    EXPECT_THROW(session.take({}), TraceLost);
  }
  CuptiSession session;
  EXPECT_EQ(kernels_seen(session, 2), 2U);
}

/// A launch that is under way writes its end into CUPTI's buffer, whoever has that by then.
TEST_F(CuptiTest, GivesWayWhileAnotherThreadLaunches) {
  launch(1);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      launch(20, 1000);
    }
  });
  for (int round = 0; round < 50; ++round) {
    CuptiSession session;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const MakeWay way;
    EXPECT_FALSE(lends_buffers());
    EXPECT_THROW(session.take({}), TraceLost);
  }
  done = true;
  other.join();
}

TEST_F(CuptiTest, LeavesCuptiToAProfilerThatDidNotAsk) {
  {
    CuptiSession session;
    const ToldOfAProfiler told;
    EXPECT_THROW(session.take({}), TraceLost);
    EXPECT_THROW(CuptiSession(), std::runtime_error);
    // The session turned off nothing of what the profiler may have turned on since.
    EXPECT_EQ(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), CUPTI_SUCCESS);
  }
  CuptiSession session;
  EXPECT_EQ(kernels_seen(session, 2), 2U);
}

TEST_F(CuptiTest, FallsBackWhereAProfilerBeginsMeanwhile) {
  int calls = 0;
  FunctionCallable kernel([&] {
    launch_sleep(kCycles, nullptr);
    if (++calls == 30) {
      const MakeWay way;
    }
  });
  const Timing timing = time_on_gpu(kernel);
  EXPECT_EQ(timing.method.value, Method::kEvent);
  EXPECT_TRUE(contains(timing.method.reason, "began in this process"));
  EXPECT_FALSE(timing.samples.candidates[0].samples.empty());
  calls = 0;
  EXPECT_THROW(time_on_gpu(kernel, {.method = Method::kKernel}), std::runtime_error);
}

TEST_F(CuptiTest, EventsAreNotForCallsOfSeveralGpus) {
  FunctionCallable kernel([] { launch_sleep(kCycles, nullptr); });
  EXPECT_THROW(time_on_gpu(kernel, {.method = Method::kEvent, .other_devices = {0}}),
               std::invalid_argument);
  const ToldOfAProfiler told;
  EXPECT_EQ(time_on_gpu(kernel, {.other_devices = {0}}).method.value, Method::kSync);
  EXPECT_THROW(time_known_kernel(), std::runtime_error);
}

TEST_F(CuptiTest, BothSeeAllBesideAToolThatSharesCupti) {
  launch(1);
  OtherTool other;
  SKIP_UNLESS(other.subscribe(true));
  launch(3);
  EXPECT_EQ(other.seen(), 3);
  for (int round = 0; round < 2; ++round) {
    CuptiSession session;
    EXPECT_EQ(kernels_seen(session, 5), 5U);
  }
  launch(2);
  EXPECT_EQ(other.seen(), 3 + 2 * 5 + 2);
}

TEST_F(CuptiTest, TimesBeforeBesideAndAfterAToolThatSharesCupti) {
  expect_all_of_it(time_known_kernel());
  OtherTool other;
  SKIP_UNLESS(other.subscribe(true));
  launch(3);
  EXPECT_EQ(other.seen(), 3);  // convtime left CUPTI fit for it
  EXPECT_TRUE(CuptiSession::shared());
  {
    const ToldOfAProfiler told;  // which does not matter then
    const Timing timing = time_known_kernel();
    EXPECT_EQ(timing.method.value, Method::kKernel);
    expect_all_of_it(timing);
    EXPECT_GE(other.seen(), static_cast<int>(timing.samples.candidates[0].samples.size()));
  }
  other.unsubscribe();
  expect_all_of_it(time_known_kernel());
}

TEST_F(CuptiTest, IsRefusedBesideAToolThatDoesNotShareCupti) {
  launch(1);
  OtherTool other;
  SKIP_UNLESS(other.subscribe(false));
  EXPECT_FALSE(CuptiSession::shared());
  launch(3);
  // Not every driver says whose it is.
  EXPECT_TRUE(contains(error_of<std::runtime_error>([] { time_known_kernel(); }),
                       "a tool that does not share it"));
  launch(2);
  EXPECT_EQ(other.seen(), 5);
  other.unsubscribe();
}

}  // namespace
}  // namespace convtime
