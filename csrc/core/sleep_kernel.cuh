#pragma once

#include <cstdint>

namespace convtime {

/// One thread sleeps until `kClock`, one of device_clocks.cuh, has gone on by `duration`.
template <std::uint64_t (*kClock)()>
__global__ void sleep_kernel(std::uint64_t duration) {
  const std::uint64_t start = kClock();
  while (kClock() - start < duration) {
    __nanosleep(100);
  }
}

}  // namespace convtime
