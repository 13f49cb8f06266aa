#pragma once

#include <cstdint>

#include "core/clock_stamp.h"

namespace convtime {

/// Nanoseconds of the device's own clock, the same on all multiprocessors.
__device__ inline std::uint64_t globaltimer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Cycles of the multiprocessor's clock.
__device__ inline std::uint64_t sm_cycles() { return static_cast<std::uint64_t>(clock64()); }

/// Spins until globaltimer_ns(), which was last seen at `now`, is at `end` or later; what it is
/// then.
__device__ inline std::uint64_t spin_until(std::uint64_t now, std::uint64_t end) {
  while (now < end) {
    now = globaltimer_ns();
  }
  return now;
}

/// A number of cycles below `range`, any of them alike. `seed` differs from call to call.
__device__ inline std::uint64_t random_cycles(std::uint64_t seed, double range) {
  std::uint64_t bits = (seed ^ sm_cycles()) * 0x9e3779b97f4a7c15ULL;  // splitmix64's finalizer
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  const double share = static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
  return static_cast<std::uint64_t>(share * range);
}

/// Spins for so many cycles; %globaltimer then. What follows finds its code in the caches: the
/// clock is read in the loop itself.
__device__ inline std::uint64_t spin_cycles(std::uint64_t cycles) {
  const std::uint64_t start = sm_cycles();
  std::uint64_t now = 0;
  do {
    now = globaltimer_ns();
  } while (sm_cycles() - start < cycles);
  return now;
}

/// Both clocks, as close together as they can be read: %globaltimer moves in steps, and is read
/// where it makes one.
__device__ inline ClockStamp read_clocks() {
  ClockStamp stamp;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(stamp.multiprocessor));
  const std::uint64_t before = globaltimer_ns();
  stamp.nanoseconds = before;
  while (stamp.nanoseconds == before) {
    stamp.nanoseconds = globaltimer_ns();
  }
  stamp.cycles = sm_cycles();
  return stamp;
}

}  // namespace convtime
