#include <cuda_runtime_api.h>
#include <cupti.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda.h"
#include "gpu.h"
#include "helpers.h"
#include "kernels/known_duration/known_duration.h"
#include "timing/trace/cupti_buffers.h"
#include "timing/trace/cupti_records.h"
#include "timing/trace/cupti_session.h"

// Losses of CUPTI's that are planted between CUPTI and what reads its records.

namespace convtime {
namespace {

using Send = std::function<void(const CUpti_Activity&)>;

/// Sends on what is left of a record; nothing where the record is lost.
using Tamper = std::function<void(const CUpti_Activity&, const Send&)>;

struct Loss {
  std::string name;
  Tamper tamper;
  std::string said;  ///< of it

  friend std::ostream& operator<<(std::ostream& out, const Loss& loss) { return out << loss.name; }
};

bool is_api_call(const CUpti_Activity& record) {
  return record.kind == CUPTI_ACTIVITY_KIND_RUNTIME || record.kind == CUPTI_ACTIVITY_KIND_DRIVER;
}

bool is_kernel(const CUpti_Activity& record) {
  return record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
}

const KernelRecord& kernel_of(const CUpti_Activity& record) {
  return reinterpret_cast<const KernelRecord&>(record);
}

Tamper drop(std::function<bool(const CUpti_Activity&)> is_lost) {
  return [is_lost](const CUpti_Activity& record, const Send& send) {
    if (!is_lost(record)) {
      send(record);
    }
  };
}

Tamper drop_kind(CUpti_ActivityKind kind) {
  return drop([kind](const CUpti_Activity& record) { return record.kind == kind; });
}

Tamper change_kernels(std::function<void(KernelRecord&)> change) {
  return [change](const CUpti_Activity& record, const Send& send) {
    if (!is_kernel(record)) {
      send(record);
      return;
    }
    KernelRecord changed = kernel_of(record);
    change(changed);
    send(reinterpret_cast<const CUpti_Activity&>(changed));
  };
}

constexpr std::uint64_t kSecond = 1'000'000'000;

std::vector<Loss> losses() {
  return {
      {"KernelLost", drop([](const CUpti_Activity& record) {
         return is_kernel(record) && kernel_of(record).graphId == 0;
       }),
       "without their records"},
      {"CopyLost", drop_kind(CUPTI_ACTIVITY_KIND_MEMCPY), "without their records"},
      {"MemsetLost", drop_kind(CUPTI_ACTIVITY_KIND_MEMSET), "without their records"},
      {"NodeOfAGraphLost", drop([launches = 0](const CUpti_Activity& record) mutable {
         // One of the two, of every other launch.
         return is_kernel(record) && kernel_of(record).graphId != 0 &&
                kernel_of(record).graphNodeId % 2 == 0 && ++launches % 2 == 0;
       }),
       "without their records"},
      {"AllOfADeviceLost", drop([](const CUpti_Activity& record) { return !is_api_call(record); }),
       "without their records"},
      {"AllApiCallsLost", drop([](const CUpti_Activity& record) { return is_api_call(record); }),
       "without their launch"},
      {"ApiCallLost", drop([](const CUpti_Activity& record) {
         return is_api_call(record) &&
                reinterpret_cast<const CUpti_ActivityAPI&>(record).correlationId % 3 == 0;
       }),
       "without their launch"},
      {"TimesNotCollected",
       change_kernels([](KernelRecord& kernel) { kernel.start = kernel.end = 0; }),
       "without times"},
      {"EndNotCollected", change_kernels([](KernelRecord& kernel) { kernel.end = 0; }),
       "without times"},
      {"Reversed", change_kernels([](KernelRecord& kernel) { kernel.end = kernel.start - 100; }),
       "end before they begin"},
      {"BeforeItsLaunch", change_kernels([](KernelRecord& kernel) {
         kernel.start -= kSecond;
         kernel.end -= kSecond;
       }),
       "begin before their launch"},
      {"AfterItWasRead", change_kernels([](KernelRecord& kernel) { kernel.end += kSecond; }),
       "after they were read"},
  };
}

/// Between CUPTI and the sink of the open session; changes some records behind the first.
class Between final : public RecordSink {
 public:
  Between(Tamper tamper, int records) : tamper_(std::move(tamper)), left_(records) {}

  /// The session is open.
  void insert() {
    if (record_sink.load() != this) {
      sink_ = record_sink.exchange(this);
    }
  }

  void take(const CUpti_Activity& record) override {
    if (++seen_ <= kSound || left_ == 0) {
      sink_->take(record);
      return;
    }
    --left_;
    tamper_(record, [this, original = &record](const CUpti_Activity& sent) {
      if (&sent == original) {
        ++left_;  // it is as it was
      }
      sink_->take(sent);
    });
  }

  void lose() override { sink_->lose(); }

 private:
  static constexpr int kSound = 100;

  Tamper tamper_;
  std::atomic<int> left_;
  std::atomic<int> seen_ = 0;
  RecordSink* sink_ = nullptr;
};

/// A call of all that CUPTI records: a memset, a copy, a kernel, and a graph of two kernels.
class EverythingOnce final : public Callable {
 public:
  explicit EverythingOnce(Between* between) : between_(between) {
    CONVTIME_CUDA_CHECK(cudaStreamCreate(&stream_));
    CONVTIME_CUDA_CHECK(cudaMalloc(&device_, kBytes));
    CONVTIME_CUDA_CHECK(cudaMallocHost(&host_, kBytes));
    CONVTIME_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    launch_sleep(1000, stream_);
    launch_sleep(2000, stream_);
    cudaGraph_t graph = nullptr;
    CONVTIME_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CONVTIME_CUDA_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    CONVTIME_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~EverythingOnce() override {
    cudaGraphExecDestroy(graph_);
    cudaFreeHost(host_);
    cudaFree(device_);
    cudaStreamDestroy(stream_);
  }

  static constexpr std::size_t kActivities = 5;

  void call() override {
    if (between_ != nullptr) {
      between_->insert();
    }
    CONVTIME_CUDA_CHECK(cudaMemsetAsync(device_, 0, kBytes, nullptr));
    CONVTIME_CUDA_CHECK(cudaMemcpyAsync(device_, host_, kBytes, cudaMemcpyHostToDevice, nullptr));
    CONVTIME_CUDA_CHECK(cudaMemsetAsync(device_, 0, 0, nullptr));  // as libraries do, for nothing
    launch_sleep(3000, nullptr);
    CONVTIME_CUDA_CHECK(cudaGraphLaunch(graph_, nullptr));
  }
  void discard_result() override {}

 private:
  static constexpr std::size_t kBytes = 4096;

  Between* between_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  void* device_ = nullptr;
  void* host_ = nullptr;
};

void expect_all_activities(const Timing& timing) {
  const CandidateSamples& samples = timing.samples.candidates[0];
  EXPECT_EQ(timing.method.value, Method::kKernel) << timing.method.reason;
  EXPECT_FALSE(samples.samples.empty());
  for (const auto& call : column(samples.samples, &Sample::activities)) {
    EXPECT_EQ(call.size(), EverythingOnce::kActivities);
  }
}

Timing time_everything(Between* between, Method method = Method::kAuto) {
  EverythingOnce everything(between);
  return time_on_gpu(everything, {.method = method});
}

TEST(Buffers, AreKnownWhileTheyAreLent) {
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0;
  std::size_t records = 1;
  request_buffer(&buffer, &bytes, &records);
  ASSERT_NE(buffer, nullptr);
  EXPECT_TRUE(lends_buffers());
  EXPECT_EQ(records, 0U);
  std::uint8_t another_tools = 0;
  EXPECT_FALSE(return_buffer(&another_tools));
  EXPECT_TRUE(return_buffer(buffer));
  EXPECT_FALSE(return_buffer(buffer));
  EXPECT_FALSE(lends_buffers());
  free_buffer(buffer);

  // One that was taken by force can still be written to.
  const std::size_t kept = kept_buffers();
  request_buffer(&buffer, &bytes, &records);
  ASSERT_NE(buffer, nullptr);
  {
    const ForcedFlush forced;
    EXPECT_TRUE(return_buffer(buffer));
    free_buffer(buffer);
  }
  EXPECT_EQ(kept_buffers(), kept + 1);
  buffer[bytes - 1] = 1;  // what an API call does on its return
  request_buffer(&buffer, &bytes, &records);
  EXPECT_TRUE(return_buffer(buffer));
  free_buffer(buffer);
  EXPECT_EQ(kept_buffers(), kept + 1);
}

using TraceTest = GpuTest;

TEST_F(TraceTest, IsSoundWhereNothingIsLost) {
  const Timing timing = time_everything(nullptr);
  expect_all_activities(timing);
  EXPECT_EQ(timing.samples.faulty_batches, 0U) << timing.samples.fault;
}

class PlantedLoss : public GpuTest, public testing::WithParamInterface<Loss> {};

TEST_P(PlantedLoss, CostsTheBatchesThatHaveIt) {
  // As few as one or two short batches have: several faulty ones in a row end in events.
  Between between(GetParam().tamper, 10);
  const Timing timing = time_everything(&between);
  expect_all_activities(timing);
  EXPECT_GE(timing.samples.faulty_batches, 1U);
  EXPECT_NE(timing.samples.fault, "");
}

TEST_P(PlantedLoss, EndsInEventsWhereItLasts) {
  constexpr int kForEver = 1 << 30;
  Between between(GetParam().tamper, kForEver);
  const Timing timing = time_everything(&between);
  EXPECT_EQ(timing.method.value, Method::kEvent);
  EXPECT_TRUE(contains(timing.method.reason, GetParam().said));
  Between again(GetParam().tamper, kForEver);
  EXPECT_THROW(time_everything(&again, Method::kKernel), std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(Of, PlantedLoss, testing::ValuesIn(losses()),
                         [](const auto& info) { return info.param.name; });

/// Hands kernels over a little after CUPTI did.
TEST_F(TraceTest, ThatIsOnlyLateIsWaitedFor) {
  std::vector<std::future<void>> late;
  Between between(
      [&late](const CUpti_Activity& record, const Send& send) {
        if (!is_kernel(record)) {
          send(record);
          return;
        }
        late.push_back(std::async(std::launch::async, [send, kernel = kernel_of(record)] {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          send(reinterpret_cast<const CUpti_Activity&>(kernel));
        }));
      },
      300);
  const Timing timing = time_everything(&between);
  late.clear();
  expect_all_activities(timing);
  EXPECT_EQ(timing.samples.faulty_batches, 0U) << timing.samples.fault;
}

TEST_F(TraceTest, OfAFullPoolOfBuffersEndsInEvents) {
  EverythingOnce everything(nullptr);
  int calls = 0;
  FunctionCallable call([&] {
    max_buffers = ++calls < 10 ? 512 : 0;
    everything.call();
  });
  // More calls than the buffers that CUPTI already has can hold.
  const Timing timing = time_on_gpu(call, {.stop = {.min_samples = 4000}});
  max_buffers = 512;
  EXPECT_EQ(timing.method.value, Method::kEvent);
  EXPECT_TRUE(contains(timing.method.reason, "incomplete"));
  expect_all_activities(time_everything(nullptr));
}

}  // namespace
}  // namespace convtime
