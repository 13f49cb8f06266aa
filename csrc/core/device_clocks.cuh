#pragma once

#include <cstdint>

#include "core/clock_stamp.h"

namespace convtime {

/// Return the nanoseconds of the device's global timer, the same on all multiprocessors.
inline std::uint64_t globaltimer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Return the cycles of the multiprocessor's clock.
inline std::uint64_t sm_cycles() { return static_cast<std::uint64_t>(clock64()); }

/// Spin until globaltimer_ns(), last read as `now`, reaches `end`; return the last reading.
inline std::uint64_t spin_until(std::uint64_t now, std::uint64_t end) {
  while (now < end) {
    now = globaltimer_ns();
  }
  return now;
}

/// Return a uniformly distributed number of cycles below `range`. `seed` differs from call to call.
inline std::uint64_t random_cycles(std::uint64_t seed, double range) {
  std::uint64_t bits = (seed ^ sm_cycles()) * 0x9e3779b97f4a7c15ULL;  // finalizer of splitmix64
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  const double share = static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
  return static_cast<std::uint64_t>(share * range);
}

/// Spin for that many cycles and return %globaltimer. The clock is read in the loop itself, so that
/// the code after it is already cached.
inline std::uint64_t spin_cycles(std::uint64_t cycles) {
  const std::uint64_t start = sm_cycles();
  std::uint64_t now = 0;
  do {
    now = globaltimer_ns();
  } while (sm_cycles() - start < cycles);
  return now;
}

/// Sleep in one thread until `kClock` has advanced by `duration`.
template <std::uint64_t (*kClock)()>
__global__ void sleep_kernel(std::uint64_t duration) {
  const std::uint64_t start = kClock();
  while (kClock() - start < duration) {
    __nanosleep(100);
  }
}

/// Read both clocks as close together as possible: %globaltimer advances in steps and is read at a
/// step.
inline ClockStamp read_clocks() {
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
