#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/export.h"

namespace convtime {

// Kernels that record their duration with the device's own clocks. Each launch throws
// std::runtime_error if CUDA refuses it. A block's stamps are its first and last %globaltimer.

/// Launch blocks that spin for `nanoseconds`. `stamps` has room for two stamps per block.
CONVTIME_API void launch_spin(std::uint64_t nanoseconds, unsigned blocks, unsigned threads,
                              std::int64_t* stamps, cudaStream_t stream);

/// Launch one thread that sleeps for at least `cycles` of its multiprocessor's clock.
CONVTIME_API void launch_sleep(std::uint64_t cycles, cudaStream_t stream);

/// Write %globaltimer (ns), clock64() (cycles) and %smid, read together by one thread.
CONVTIME_API void launch_read_clocks(std::int64_t* clocks, cudaStream_t stream);

/// Copy `bytes` (a multiple of 16, both sides aligned to 16) in copy_blocks(bytes) blocks.
CONVTIME_API void launch_copy(const void* from, void* to, std::size_t bytes, std::int64_t* stamps,
                              cudaStream_t stream);
CONVTIME_API unsigned copy_blocks(std::size_t bytes);

}  // namespace convtime
