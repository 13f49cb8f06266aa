#include <algorithm>

#include "core/cuda_check.h"
#include "core/globaltimer.cuh"
#include "kernels/known_duration/known_duration.h"

namespace convtime {
namespace {

constexpr unsigned kCopyThreads = 256;
/// Of 16 bytes, by each thread of a copy.
constexpr unsigned kCopyWords = 8;

__global__ void spin_kernel(std::uint64_t nanoseconds, std::int64_t* stamps) {
  const std::uint64_t start = globaltimer_ns();
  std::uint64_t now = start;
  while (now - start < nanoseconds) {
    now = globaltimer_ns();
  }
  if (threadIdx.x == 0) {
    stamps[2 * blockIdx.x] = static_cast<std::int64_t>(start);
    stamps[2 * blockIdx.x + 1] = static_cast<std::int64_t>(now);
  }
}

__global__ void sleep_kernel(std::uint64_t cycles) {
  const auto start = static_cast<std::uint64_t>(clock64());
  while (static_cast<std::uint64_t>(clock64()) - start < cycles) {
    __nanosleep(100);
  }
}

__global__ void read_clocks_kernel(std::int64_t* clocks) {
  std::uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  clocks[0] = static_cast<std::int64_t>(globaltimer_ns());
  clocks[1] = clock64();
  clocks[2] = multiprocessor;
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
  __threadfence();  // or the last stores were still under way at the second stamp
  __syncthreads();
  if (threadIdx.x == 0) {
    stamps[2 * blockIdx.x] = static_cast<std::int64_t>(start);
    stamps[2 * blockIdx.x + 1] = static_cast<std::int64_t>(globaltimer_ns());
  }
}

}  // namespace

void launch_spin(std::uint64_t nanoseconds, unsigned blocks, unsigned threads, std::int64_t* stamps,
                 cudaStream_t stream) {
  spin_kernel<<<blocks, threads, 0, stream>>>(nanoseconds, stamps);
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void launch_sleep(std::uint64_t cycles, cudaStream_t stream) {
  sleep_kernel<<<1, 1, 0, stream>>>(cycles);
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
