#pragma once

#include <cstdint>

namespace convtime {

/// Nanoseconds of the device's own clock, the same on all multiprocessors.
__device__ inline std::uint64_t globaltimer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace convtime
