#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_clocks.cuh"
#include "kernels/known_duration/copy_shape.h"

namespace convtime {

void stamp_block(std::int64_t* stamps, std::uint64_t start, std::uint64_t end) {
  stamps[2 * blockIdx.x] = static_cast<std::int64_t>(start);
  stamps[2 * blockIdx.x + 1] = static_cast<std::int64_t>(end);
}

__global__ void spin_kernel(std::uint64_t nanoseconds, std::int64_t* stamps) {
  const std::uint64_t start = globaltimer_ns();
  const std::uint64_t end = spin_until(start, start + nanoseconds);
  if (threadIdx.x == 0) {
    stamp_block(stamps, start, end);
  }
}

__global__ void read_clocks_kernel(std::int64_t* clocks) {
  const ClockStamp stamp = read_clocks();
  clocks[0] = static_cast<std::int64_t>(stamp.nanoseconds);
  clocks[1] = static_cast<std::int64_t>(stamp.cycles);
  clocks[2] = stamp.multiprocessor;
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::size_t words, std::int64_t* stamps) {
  const std::uint64_t start = globaltimer_ns();
  const std::size_t first =
      static_cast<std::size_t>(blockIdx.x) * kCopyThreads * kCopyWords + threadIdx.x;
#pragma unroll
  for (unsigned i = 0; i < kCopyWords; ++i) {
    const std::size_t word = first + i * kCopyThreads;
    if (word < words) {
      to[word] = from[word];
    }
  }
  __threadfence();  // otherwise the last stores would still be in flight at the second stamp
  __syncthreads();
  if (threadIdx.x == 0) {
    stamp_block(stamps, start, globaltimer_ns());
  }
}

}  // namespace convtime
