#pragma once

#include <cstdint>

namespace convtime {

/// Sleep in one thread until `kClock`, from device_clocks.cuh, has advanced by `duration`.
template <std::uint64_t (*kClock)()>
__global__ void sleep_kernel(std::uint64_t duration) {
  const std::uint64_t start = kClock();
  while (kClock() - start < duration) {
    __nanosleep(100);
  }
}

}  // namespace convtime
