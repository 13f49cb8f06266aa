#include "timing/timers/device_tick.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/device_memory.h"
#include "timing/device/kernels.h"
#include "timing/device/parameters.h"
#include "timing/judge/statistics.h"

namespace convtime {
namespace {

constexpr std::size_t kDurations = 64;
/// A few microseconds, which is several steps even for a clock of 1 us.
constexpr std::uint64_t kMinCycles = 3000;
constexpr std::uint64_t kMaxCycles = 15000;

/// Each call spins for a different number of cycles.
class VaryingSpin final : public Callable {
 public:
  explicit VaryingSpin(cudaStream_t stream) : stream_(stream) {}
  void call() override {
    constexpr std::uint64_t kStride = 7919;  // prime: avoids a pattern within the range
    offset_ = (offset_ + kStride) % (kMaxCycles - kMinCycles);
    timing_kernels().spin_cycles.launch(1, 1, 0, stream_, kMinCycles + offset_);
  }

 private:
  cudaStream_t stream_;
  std::uint64_t offset_ = 0;
};

}  // namespace

double device_tick(DeviceClock clock, const std::function<double()>& measure) {
  using Ticks = std::map<std::pair<int, DeviceClock>, double>;
  static auto* const mutex = new std::mutex;  // never destroyed: timings may outlive main()
  static auto* const known = new Ticks;
  const std::pair key{current_device(), clock};
  const std::lock_guard lock(*mutex);
  const auto found = known->find(key);
  return found != known->end() ? found->second : known->emplace(key, measure()).first->second;
}

double measure_tick(Timer& timer, cudaStream_t stream, std::size_t batch) {
  VaryingSpin spin(stream);
  std::vector<double> seconds(kDurations);
  const std::vector<Callable*> calls(kDurations, &spin);
  for (std::size_t first = 0; first < kDurations; first += batch) {
    const std::size_t count = std::min(batch, kDurations - first);
    timer.run(std::span(calls).first(count));
    timer.collect(std::span(seconds).subspan(first, count));
  }
  return tick_of(seconds);
}

double globaltimer_tick(cudaStream_t stream, const DeviceAllocator& allocate) {
  return device_tick(DeviceClock::kGlobalTimer, [&] {
    const DeviceMemory<std::uint64_t> times(kGlobaltimerSteps + 1, allocate);
    timing_kernels().watch_globaltimer.launch(1, 1, 0, stream, times.get());
    std::vector<std::uint64_t> seen(kGlobaltimerSteps + 1);
    CONVTIME_CUDA_CHECK(cudaMemcpyAsync(seen.data(), times.get(), seen.size() * sizeof(seen[0]),
                                        cudaMemcpyDeviceToHost, stream));
    CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::uint64_t shortest = seen[1] - seen[0];
    for (unsigned step = 1; step < kGlobaltimerSteps; ++step) {
      shortest = std::min(shortest, seen[step + 1] - seen[step]);
    }
    return static_cast<double>(shortest) * 1e-9;
  });
}

}  // namespace convtime
