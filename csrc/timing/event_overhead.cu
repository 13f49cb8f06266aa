#include <map>
#include <mutex>
#include <stdexcept>

#include "timing/event_overhead.h"
#include "timing/event_timer.h"
#include "timing/gate_hold.h"
#include "timing/kernel_timer.h"
#include "timing/sampler.h"
#include "timing/statistics.h"

namespace convtime {
namespace {

__global__ void empty_kernel() {}

class EmptyKernel final : public Callable {
 public:
  void call() override {
    empty_kernel<<<1, 1>>>();
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  }
};

double median_of_empty_kernel(Timer& timer) {
  constexpr std::size_t kSamples = 100;
  EmptyKernel kernel;
  Callable* const candidate = &kernel;
  GateHold gate(nullptr);
  Sampler sampler(timer, &gate, {.calls = 3, .seconds = 0},
                  {.min_samples = kSamples, .max_samples = kSamples});
  return quantile(sampler.run({&candidate, 1}).seconds.front(), 0.5);
}

}  // namespace

std::optional<double> event_overhead_seconds(bool may_use_cupti) {
  static std::mutex mutex;
  static std::map<int, double> measured;
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto found = measured.find(device); found != measured.end()) {
    return found->second;
  }
  if (!may_use_cupti) {
    return std::nullopt;
  }
  double kernel = 0;
  try {
    KernelTimer timer;
    kernel = median_of_empty_kernel(timer);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  EventTimer timer(nullptr, Sampler::max_batch(1));
  return measured[device] = median_of_empty_kernel(timer) - kernel;
}

}  // namespace convtime
