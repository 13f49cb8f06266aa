#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "core/device_memory.h"
#include "core/globaltimer.cuh"
#include "timing/calibration.h"
#include "timing/event_timer.h"
#include "timing/gate_hold.h"
#include "timing/graph_timer.h"
#include "timing/kernel_timer.h"
#include "timing/sampler.h"
#include "timing/statistics.h"

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
  std::uint64_t now = start;
  while (now - start < kReferenceNs) {
    now = globaltimer_ns();
  }
  result[blockIdx.x] = now;
}

/// Launches to a stream that can be changed, since a graph is captured on one of its own.
class ReferenceKernel final : public Callable {
 public:
  explicit ReferenceKernel(cudaStream_t stream) : stream(stream) {}
  void call() override {
    reference_kernel<<<kReferenceBlocks, kReferenceThreads, 0, stream>>>({}, result_.get());
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  }

  cudaStream_t stream;

 private:
  DeviceMemory<std::uint64_t> result_ = make_device_memory<std::uint64_t>(kReferenceBlocks);
};

double median_of(Callable& callable, Timer& timer, cudaStream_t stream) {
  constexpr std::size_t kSamples = 100;
  Callable* const candidate = &callable;
  GateHold gate(stream);
  Sampler sampler(
      timer, &gate, nullptr, {.calls = 3, .steady = false},
      {.criterion = StopCriterion::kCount, .min_samples = kSamples, .max_samples = kSamples});
  return quantile(sampler.run({&candidate, 1}).seconds.front(), 0.5);
}

double stream_seconds(Timer& timer, const CalibrationConditions& conditions) {
  ReferenceKernel kernel(conditions.stream);
  ColdCallable cold(kernel, conditions.flush);
  return median_of(cold, timer, conditions.stream);
}

double kernel_seconds(const CalibrationConditions& conditions) {
  KernelTimer timer({});
  return stream_seconds(timer, conditions);
}

double event_seconds(const CalibrationConditions& conditions) {
  EventTimer timer(conditions.stream, Sampler::max_batch(1));
  return stream_seconds(timer, conditions);
}

double graph_seconds(const GraphRecorder& recorder, const CalibrationConditions& conditions) {
  ReferenceKernel kernel(conditions.stream);
  const auto record = [&](const std::function<void(void*)>& work) {
    return recorder([&](void* stream) {
      const cudaStream_t outside = std::exchange(kernel.stream, static_cast<cudaStream_t>(stream));
      work(stream);
      kernel.stream = outside;
    });
  };
  if (conditions.flush.empty()) {
    GraphTimer timer(record, conditions.stream, Sampler::max_batch(1));
    return median_of(kernel, timer, conditions.stream);
  }
  ColdGraphTimer timer(record, {conditions.flush.begin(), conditions.flush.end()},
                       conditions.stream, Sampler::max_batch(1));
  return median_of(kernel, timer, conditions.stream);
}

enum class Correction { kEventOverhead, kGraphOverhead };

std::optional<double> measure_once(Correction correction, const CalibrationConditions& conditions,
                                   bool may_use_cupti, const std::function<double()>& seconds) {
  using Key = std::tuple<Correction, int, bool>;
  static std::mutex mutex;
  static std::map<Key, double> measured;
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  const Key key{correction, device, conditions.flush.empty()};
  const std::lock_guard lock(mutex);
  if (const auto found = measured.find(key); found != measured.end()) {
    return found->second;
  }
  if (!may_use_cupti) {
    return std::nullopt;
  }
  double kernel = 0;
  try {
    kernel = kernel_seconds(conditions);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  return measured[key] = seconds() - kernel;
}

}  // namespace

std::optional<double> event_overhead_seconds(const CalibrationConditions& conditions,
                                             bool may_use_cupti) {
  return measure_once(Correction::kEventOverhead, conditions, may_use_cupti,
                      [&] { return event_seconds(conditions); });
}

std::optional<double> graph_overhead_seconds(const GraphRecorder& recorder,
                                             const CalibrationConditions& conditions,
                                             bool may_use_cupti) {
  return measure_once(Correction::kGraphOverhead, conditions, may_use_cupti,
                      [&] { return graph_seconds(recorder, conditions); });
}

}  // namespace convtime
