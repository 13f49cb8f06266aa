#include "timing/trace/cupti_session.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cuda_check.h"
#include "core/cupti_check.h"
#include "gpu.h"
#include "kernels/known_duration/known_duration.h"
#include "timing/time_op.h"

namespace convtime {
namespace {

constexpr std::uint64_t kCycles = 100'000;

void launch(int kernels) {
  for (int i = 0; i < kernels; ++i) {
    launch_sleep(kCycles, nullptr);
  }
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
}

std::size_t kernels_in(const TraceRecords& records) {
  return static_cast<std::size_t>(std::count_if(
      records.activities.begin(), records.activities.end(),
      [](const DeviceActivity& activity) { return activity.info.kind == ActivityKind::kKernel; }));
}

/// What method 'kernel' says of a kernel of known duration.
Timing time_known_kernel(const std::string& kernel_unavailable = "") {
  FunctionCallable kernel([] { launch_sleep(kCycles, nullptr); });
  Callable* const candidates[] = {&kernel};
  return time_candidates(
      candidates,
      {.method = Method::kKernel, .on_gpu = true, .kernel_unavailable = kernel_unavailable});
}

void expect_all_of_it(const Timing& timing) {
  const CandidateSamples& samples = timing.samples.candidates[0];
  const std::vector<ActivityColumn> columns = tabulate(samples.activities);
  ASSERT_EQ(columns.size(), 1U);
  EXPECT_NE(columns[0].info.name.find("sleep"), std::string::npos);
  const double longest = kCycles / 0.5e9;  // no GPU in use has a clock below
  for (const double seconds : samples.seconds) {
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

#define SKIP_UNLESS(subscribed)                                                     \
  do {                                                                              \
    if (!(subscribed)) {                                                            \
      GTEST_SKIP() << "this CUPTI, or its driver, does not let the tool subscribe"; \
    }                                                                               \
  } while (false)

TEST(CuptiSession, SaysWhatIsMissingWithoutADriver) {
  if (cuda_available()) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  EXPECT_FALSE(CuptiSession::shared());
  ASSERT_TRUE(CuptiSession::unavailable().has_value());
  try {
    const CuptiSession session;
    FAIL() << "a session without a driver";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), *CuptiSession::unavailable());
  }
}

TEST(CuptiSession, SeesWhatIsDoneWithinIt) {
  SKIP_WITHOUT_GPU();
  launch(1);
  EXPECT_FALSE(CuptiSession::shared());
  for (int round = 0; round < 3; ++round) {
    CuptiSession session;
    EXPECT_FALSE(CuptiSession::shared());
    launch(5);
    const TraceRecords records = session.take();
    EXPECT_EQ(kernels_in(records), 5U);
    EXPECT_GE(records.api_calls.size(), 5U);
    launch(2);
    EXPECT_EQ(kernels_in(session.take()), 2U);
  }
}

TEST(CuptiSession, BothSeeAllBesideAToolThatSharesCupti) {
  SKIP_WITHOUT_GPU();
  launch(1);
  OtherTool other;
  SKIP_UNLESS(other.subscribe(true));
  launch(3);
  EXPECT_EQ(other.seen(), 3);
  for (int round = 0; round < 2; ++round) {
    CuptiSession session;
    launch(5);
    EXPECT_EQ(kernels_in(session.take()), 5U);
  }
  launch(2);
  EXPECT_EQ(other.seen(), 3 + 2 * 5 + 2);
}

TEST(KernelTimer, TimesBesideAToolThatSharesCupti) {
  SKIP_WITHOUT_GPU();
  launch(1);
  OtherTool other;
  SKIP_UNLESS(other.subscribe(true));
  EXPECT_TRUE(CuptiSession::shared());
  const Timing timing = time_known_kernel("it is taken");
  EXPECT_EQ(timing.method, Method::kKernel);
  expect_all_of_it(timing);
  EXPECT_GE(other.seen(), static_cast<int>(timing.samples.candidates[0].seconds.size()));
}

TEST(KernelTimer, TimesBeforeAndAfterAToolThatSharesCupti) {
  SKIP_WITHOUT_GPU();
  expect_all_of_it(time_known_kernel());
  OtherTool other;
  SKIP_UNLESS(other.subscribe(true));
  launch(3);
  EXPECT_EQ(other.seen(), 3);  // convtime left CUPTI fit for it
  other.unsubscribe();
  expect_all_of_it(time_known_kernel());
}

TEST(KernelTimer, IsRefusedBesideAToolThatDoesNotShareCupti) {
  SKIP_WITHOUT_GPU();
  launch(1);
  OtherTool other;
  SKIP_UNLESS(other.subscribe(false));
  EXPECT_FALSE(CuptiSession::shared());
  launch(3);
  try {
    time_known_kernel();
    FAIL() << "took CUPTI from the tool that had it";
  } catch (const std::runtime_error& error) {
    // Not every driver says whose it is.
    EXPECT_NE(std::string(error.what()).find("a tool that does not share it"), std::string::npos)
        << error.what();
  }
  launch(2);
  EXPECT_EQ(other.seen(), 5);
  other.unsubscribe();
}

}  // namespace
}  // namespace convtime
