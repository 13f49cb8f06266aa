#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/globaltimer.cuh"
#include "timing/sm_clock_probe.h"

namespace convtime {
namespace {

/// Blocks of a stamp. An idle device places the first blocks on the same multiprocessors each time;
/// several make it likely that two stamps share one also beside other work.
constexpr unsigned kBlocks = 8;

__global__ void stamp_kernel(ClockStamp* stamps, const ClockStamp* first,
                             std::uint64_t min_elapsed_ns) {
  ClockStamp& stamp = stamps[blockIdx.x];
  asm volatile("mov.u32 %0, %%smid;" : "=r"(stamp.multiprocessor));
  if (first != nullptr) {
    while (globaltimer_ns() - first[blockIdx.x].nanoseconds < min_elapsed_ns) {
    }
  }
  // %globaltimer moves in steps: wait for one, so that both clocks are read at the same time.
  const std::uint64_t before = globaltimer_ns();
  std::uint64_t now = before;
  while (now == before) {
    now = globaltimer_ns();
  }
  stamp.nanoseconds = now;
  stamp.cycles = static_cast<std::uint64_t>(clock64());
}

}  // namespace

SmClockProbe::SmClockProbe(cudaStream_t stream, std::size_t capacity)
    : stream_(stream),
      capacity_(capacity),
      stamps_(make_device_memory<ClockStamp>((capacity + 1) * kBlocks)) {}

void SmClockProbe::stamp() {
  if (count_ >= capacity_) {
    throw std::logic_error("more calls were stamped than the clock probe has room for");
  }
  stamp_kernel<<<kBlocks, 1, 0, stream_>>>(stamps_.get() + count_ * kBlocks, nullptr, 0);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
  ++count_;
}

void SmClockProbe::finish() {
  stamp_kernel<<<kBlocks, 1, 0, stream_>>>(stamps_.get() + count_ * kBlocks, stamps_.get(),
                                           kClockWindowNs);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
  ++count_;
}

void SmClockProbe::collect(std::span<double> hertz) {
  std::vector<ClockStamp> stamps(count_ * kBlocks);
  count_ = 0;
  CONVTIME_CUDA_CHECK(cudaMemcpyAsync(stamps.data(), stamps_.get(),
                                      stamps.size() * sizeof(ClockStamp), cudaMemcpyDeviceToHost,
                                      stream_));
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream_));
  const std::vector<double> rates = clock_rates(stamps, kBlocks);
  std::copy(rates.begin(), rates.end(), hertz.begin());
}

double max_sm_clock_hertz() {
  int device = 0;
  int kilohertz = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  CONVTIME_CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device));
  return 1e3 * kilohertz;
}

}  // namespace convtime
