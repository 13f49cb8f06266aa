#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "core/device_clocks.cuh"
#include "core/device_memory.h"
#include "timing/calibration.h"
#include "timing/conditions/gate_hold.h"
#include "timing/judge/statistics.h"
#include "timing/sampler.h"
#include "timing/timers/event_timer.h"
#include "timing/timers/graph_timer.h"
#include "timing/timers/kernel_timer.h"

namespace convtime {
namespace {

/// Long enough that the launch of what follows is hidden behind it, as behind most kernels.
constexpr std::uint64_t kReferenceNs = 2000;
constexpr unsigned kReferenceBlocks = 256;
constexpr unsigned kReferenceThreads = 256;

/// As large as those of a matmul: they are part of what the device needs for a launch.
struct Parameters {
  std::uint64_t unused[256];
};

/// As many kernels do, it fills the device, and ends with a store, which an event waits for.
__global__ void reference_kernel(Parameters, std::uint64_t* result) {
  const std::uint64_t start = globaltimer_ns();
  result[blockIdx.x] = spin_until(start, start + kReferenceNs);
}

/// Launches to a stream that can change, since a graph is recorded from one of its own.
class ReferenceKernel final : public Callable {
 public:
  explicit ReferenceKernel(const cudaStream_t& stream) : stream_(stream) {}
  void call() override {
    reference_kernel<<<kReferenceBlocks, kReferenceThreads, 0, stream_>>>({}, result_.get());
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  }

 private:
  const cudaStream_t& stream_;
  DeviceMemory<std::uint64_t> result_ = make_device_memory<std::uint64_t>(kReferenceBlocks);
};

std::unique_ptr<Callable> make_reference(const CalibrationConditions& conditions,
                                         const cudaStream_t& stream) {
  return conditions.reference ? conditions.reference() : std::make_unique<ReferenceKernel>(stream);
}

double median_of(Callable& callable, Timer& timer, const CalibrationConditions& conditions) {
  constexpr std::size_t kSamples = 100;
  Callable* const candidate = &callable;
  GateHold gate(conditions.stream);
  Sampler sampler(
      timer, &gate, nullptr, {.calls = 3, .steady = false},
      {.criterion = StopCriterion::kCount, .min_samples = kSamples, .max_samples = kSamples},
      conditions.hooks);
  return median(sampler.run({&candidate, 1}).candidates.front().seconds);
}

double stream_seconds(Timer& timer, const CalibrationConditions& conditions) {
  const std::unique_ptr<Callable> reference = make_reference(conditions, conditions.stream);
  ColdCallable cold(*reference, conditions.flush);
  return median_of(cold, timer, conditions);
}

double event_seconds(const CalibrationConditions& conditions) {
  EventTimer timer(conditions.stream, Sampler::max_batch(1));
  return stream_seconds(timer, conditions);
}

double graph_seconds(const GraphRecorder& recorder, const CalibrationConditions& conditions) {
  cudaStream_t stream = conditions.stream;
  const std::unique_ptr<Callable> reference = make_reference(conditions, stream);
  const auto record = [&](const std::function<void(void*)>& work) {
    return recorder([&](void* recording) {
      const cudaStream_t outside = std::exchange(stream, static_cast<cudaStream_t>(recording));
      work(recording);
      stream = outside;
    });
  };
  const GraphContext context{record, conditions.stream, conditions.hooks.wait};
  if (conditions.flush.empty()) {
    GraphTimer timer(context, Sampler::max_batch(1));
    return median_of(*reference, timer, conditions);
  }
  ColdGraphTimer timer(context, {conditions.flush.begin(), conditions.flush.end()},
                       Sampler::max_batch(1));
  return median_of(*reference, timer, conditions);
}

/// By CUPTI; measured once for each device, with and without a flush, in a process.
std::optional<double> known_kernel_seconds(const CalibrationConditions& conditions,
                                           bool may_use_cupti) {
  using Key = std::tuple<int, bool, bool>;
  static std::mutex mutex;
  static std::map<Key, double> measured;
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  const Key key{device, conditions.flush.empty(), bool(conditions.reference)};
  // Who holds the mutex waits for the device, and lets go of other locks for that: so must who
  // waits for the mutex.
  std::unique_lock lock(mutex, std::defer_lock);
  conditions.hooks.wait([&] { lock.lock(); });
  if (const auto found = measured.find(key); found != measured.end()) {
    return found->second;
  }
  if (!may_use_cupti) {
    return std::nullopt;
  }
  try {
    KernelTimer timer({});
    return measured[key] = stream_seconds(timer, conditions);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<double> event_overhead_seconds(const CalibrationConditions& conditions,
                                             bool may_use_cupti) {
  const std::optional<double> kernel = known_kernel_seconds(conditions, may_use_cupti);
  return kernel.has_value() ? std::optional(event_seconds(conditions) - *kernel) : std::nullopt;
}

std::optional<double> graph_overhead_seconds(const GraphRecorder& recorder,
                                             const CalibrationConditions& conditions,
                                             bool may_use_cupti) {
  const std::optional<double> kernel = known_kernel_seconds(conditions, may_use_cupti);
  return kernel.has_value() ? std::optional(graph_seconds(recorder, conditions) - *kernel)
                            : std::nullopt;
}

}  // namespace convtime
