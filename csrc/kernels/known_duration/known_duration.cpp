#include "kernels/known_duration/known_duration.h"

#include <algorithm>

#include "kernels/known_duration/copy_shape.h"
#include "program/program.h"

namespace convtime {
namespace {

/// Return a kernel of this folder by its name.
Kernel kernel(const char* name) {
  static auto* const table = new KernelTable<const char*>;
  return table->get(name, [](const char* kernel) {
    return ProgramSource{"kernels/known_duration/known_duration.cuh", {kernel}};
  });
}

}  // namespace

void launch_spin(std::uint64_t nanoseconds, unsigned blocks, unsigned threads, std::int64_t* stamps,
                 cudaStream_t stream) {
  kernel("convtime::spin_kernel").launch(blocks, threads, 0, stream, nanoseconds, stamps);
}

void launch_sleep(std::uint64_t cycles, cudaStream_t stream) {
  kernel("convtime::sleep_kernel<convtime::sm_cycles>").launch(1, 1, 0, stream, cycles);
}

void launch_read_clocks(std::int64_t* clocks, cudaStream_t stream) {
  kernel("convtime::read_clocks_kernel").launch(1, 1, 0, stream, clocks);
}

unsigned copy_blocks(std::size_t bytes) {
  constexpr std::size_t kBlockBytes = sizeof(uint4) * kCopyThreads * kCopyWords;
  return static_cast<unsigned>(std::max<std::size_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes));
}

void launch_copy(const void* from, void* to, std::size_t bytes, std::int64_t* stamps,
                 cudaStream_t stream) {
  const std::size_t words = bytes / sizeof(uint4);
  kernel("convtime::copy_kernel")
      .launch(copy_blocks(bytes), kCopyThreads, 0, stream, from, to, words, stamps);
}

}  // namespace convtime
