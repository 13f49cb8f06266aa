#include "timing/timers/device_stamps.h"

#include <stdexcept>

#include "timing/conditions/sm_clock_probe.h"
#include "timing/device/kernels.h"
#include "timing/timers/device_tick.h"

namespace convtime {
namespace {

/// The minimum duration of an opening stamp: the launch of the following work is then in progress
/// before the clock is read.
constexpr double kOpenSeconds = 4e-6;

}  // namespace

DeviceStamps::DeviceStamps(cudaStream_t stream, std::size_t capacity,
                           const DeviceAllocator& allocate)
    : stream_(stream),
      capacity_(capacity),
      tick_seconds_(globaltimer_tick(stream, allocate)),
      open_cycles_(kOpenSeconds * max_sm_clock_hz()),
      random_cycles_(phase_range_seconds(tick_seconds_) * max_sm_clock_hz()),
      count_and_stamps_(1 + capacity, allocate) {
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(count_and_stamps_.get(), 0, sizeof(std::uint64_t), stream_));
}

void DeviceStamps::open(cudaStream_t stream) { stamp(true, stream); }

void DeviceStamps::close(cudaStream_t stream) { stamp(false, stream); }

void DeviceStamps::stamp(bool open, cudaStream_t stream) {
  timing_kernels().stamp.launch(1, 1, 0, stream, count_and_stamps_.get(),
                                static_cast<std::uint64_t>(capacity_), open, open_cycles_,
                                random_cycles_);
}

std::vector<std::uint64_t> DeviceStamps::take() {
  std::vector<std::uint64_t> stamps(1 + capacity_);
  const std::size_t bytes = stamps.size() * sizeof(std::uint64_t);
  CONVTIME_CUDA_CHECK(cudaMemcpyAsync(stamps.data(), count_and_stamps_.get(), bytes,
                                      cudaMemcpyDeviceToHost, stream_));
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(count_and_stamps_.get(), 0, sizeof(std::uint64_t), stream_));
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream_));
  const std::size_t count = stamps.front();
  if (count > capacity_) {
    throw std::logic_error("the number of stamps must not exceed the capacity");
  }
  return {stamps.begin() + 1, stamps.begin() + 1 + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace convtime
