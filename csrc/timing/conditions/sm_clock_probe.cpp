#include "timing/conditions/sm_clock_probe.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "timing/device/kernels.h"
#include "timing/timers/device_timers.h"

namespace convtime {
namespace {

/// Blocks per stamp. An idle device places the first blocks on the same multiprocessors each time.
/// With several blocks, two stamps are likely to share a multiprocessor even next to other work.
constexpr unsigned kBlocks = 8;

}  // namespace

SmClockProbe::SmClockProbe(cudaStream_t stream, std::size_t capacity, double tick_seconds,
                           const DeviceAllocator& allocate)
    : stream_(stream),
      capacity_(capacity),
      stamps_((capacity + 1) * kBlocks, allocate),
      random_cycles_(phase_range_seconds(tick_seconds) * max_sm_clock_hz()),
      last_pace_(make_event(cudaEventDisableTiming)),
      pace_before_(make_event(cudaEventDisableTiming)) {}

void SmClockProbe::stamp() {
  if (count_ >= capacity_) {
    throw std::logic_error("the clock probe must not stamp more calls than its capacity");
  }
  timing_kernels().probe_clock.launch(kBlocks, 1, 0, stream_, stamps_.get() + count_ * kBlocks,
                                      random_cycles_);
  ++count_;
}

void SmClockProbe::finish() {
  timing_kernels().finish_probe.launch(kBlocks, 1, 0, stream_, stamps_.get() + count_ * kBlocks,
                                       stamps_.get());
  ++count_;
}

void SmClockProbe::pace() {
  std::swap(last_pace_, pace_before_);
  CONVTIME_CUDA_CHECK(cudaEventSynchronize(last_pace_.get()));
  CONVTIME_CUDA_CHECK(cudaEventRecord(last_pace_.get(), stream_));
}

double SmClockProbe::idle_clock_hz() {
  timing_kernels().probe_window.launch(1, 1, 0, stream_, stamps_.get());
  return clock_rates_hz(stamps_.read(2, stream_), 1).front();
}

void SmClockProbe::collect(std::span<double> clocks_hz) {
  const std::vector<double> rates_hz =
      clock_rates_hz(stamps_.read(std::exchange(count_, 0) * kBlocks, stream_), kBlocks);
  std::ranges::copy(rates_hz, clocks_hz.begin());
}

double max_sm_clock_hz() {
  static auto& mutex = *new std::mutex;  // neither is ever destroyed: a thread may outlive main()
  static auto& known = *new std::map<int, double>;
  const int device = current_device();
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) {
    return found->second;
  }
  int clock_khz = 0;
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
  return known[device] = 1e3 * clock_khz;
}

}  // namespace convtime
