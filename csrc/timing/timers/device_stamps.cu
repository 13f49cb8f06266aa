#include <stdexcept>

#include "core/device_clocks.cuh"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/timers/device_stamps.h"
#include "timing/timers/device_tick.h"

namespace convtime {
namespace {

/// An opening stamp takes this long, so that the launch of what follows is under way before the
/// clock is read.
constexpr std::uint64_t kOpenNs = 4000;

/// One kernel for both, so that a closing stamp finds its code in the caches, whatever was done to
/// them before the opening one.
__global__ void stamp_kernel(std::uint64_t* count_and_stamps, std::uint64_t capacity, bool open,
                             double cycles_per_tick) {
  const std::uint64_t start = globaltimer_ns();
  const std::uint64_t count = *static_cast<volatile std::uint64_t*>(count_and_stamps);
  std::uint64_t now = start;
  if (open) {
    spin_until(start, start + kOpenNs);
    spin_random_phase(start + count, cycles_per_tick);
    now = globaltimer_ns();
  }
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
      cycles_per_tick_(tick_seconds_ * max_sm_clock_hz()),
      count_and_stamps_(1 + capacity, allocate) {
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(count_and_stamps_.get(), 0, sizeof(std::uint64_t), stream_));
}

void DeviceStamps::open(cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(count_and_stamps_.get(), capacity_, true, cycles_per_tick_);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void DeviceStamps::close(cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(count_and_stamps_.get(), capacity_, false, cycles_per_tick_);
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
    throw std::logic_error("more was stamped than there is room for");
  }
  return {stamps.begin() + 1, stamps.begin() + 1 + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace convtime
