#include <algorithm>

#include "core/cuda_check.h"
#include "core/device_clocks.cuh"
#include "core/sleep_kernel.cuh"
#include "kernels/known_duration/known_duration.h"

namespace convtime {
namespace {

constexpr unsigned kCopyThreads = 256;
/// The number of 16-byte words that each thread of a copy moves.
constexpr unsigned kCopyWords = 8;

__device__ void stamp_block(std::int64_t* stamps, std::uint64_t start, std::uint64_t end) {
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

}  // namespace

void launch_spin(std::uint64_t nanoseconds, unsigned blocks, unsigned threads, std::int64_t* stamps,
                 cudaStream_t stream) {
  spin_kernel<<<blocks, threads, 0, stream>>>(nanoseconds, stamps);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void launch_sleep(std::uint64_t cycles, cudaStream_t stream) {
  sleep_kernel<sm_cycles><<<1, 1, 0, stream>>>(cycles);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void launch_read_clocks(std::int64_t* clocks, cudaStream_t stream) {
  read_clocks_kernel<<<1, 1, 0, stream>>>(clocks);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

unsigned copy_blocks(std::size_t bytes) {
  constexpr std::size_t kBlockBytes = sizeof(uint4) * kCopyThreads * kCopyWords;
  return static_cast<unsigned>(std::max<std::size_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes));
}

void launch_copy(const void* from, void* to, std::size_t bytes, std::int64_t* stamps,
                 cudaStream_t stream) {
  copy_kernel<<<copy_blocks(bytes), kCopyThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / sizeof(uint4), stamps);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
