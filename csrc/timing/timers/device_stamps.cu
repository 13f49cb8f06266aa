#include <stdexcept>

#include "core/device_clocks.cuh"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/timers/device_stamps.h"
#include "timing/timers/device_tick.h"

namespace convtime {
namespace {

/// The minimum duration of an opening stamp: the launch of the following work is then in progress
/// before the clock is read.
constexpr double kOpenSeconds = 4e-6;

/// One kernel for both, so that a closing stamp's code is cached, even if the caches were flushed
/// before the opening stamp.
__global__ void stamp_kernel(std::uint64_t* count_and_stamps, std::uint64_t capacity, bool open,
                             double least_cycles, double random_range) {
  const std::uint64_t count = *static_cast<volatile std::uint64_t*>(count_and_stamps);
  const std::uint64_t cycles =
      open ? static_cast<std::uint64_t>(least_cycles) + random_cycles(count, random_range) : 0;
  const std::uint64_t now = spin_cycles(cycles);
  if (count < capacity) {
    count_and_stamps[1 + count] = now;
  }
  *count_and_stamps = count + 1;
}

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

void DeviceStamps::open(cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(count_and_stamps_.get(), capacity_, true, open_cycles_,
                                    random_cycles_);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void DeviceStamps::close(cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(count_and_stamps_.get(), capacity_, false, open_cycles_,
                                    random_cycles_);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
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
