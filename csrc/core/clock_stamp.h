#pragma once

#include <cstdint>

namespace convtime {

/// Both clocks of one multiprocessor, read together.
struct ClockStamp {
  std::uint64_t nanoseconds = 0;
  std::uint64_t cycles = 0;
  std::uint32_t multiprocessor = 0;
};

/// The time between two stamps that give a clock's rate. In a shorter window, the 32 ns steps of
/// %globaltimer would matter.
inline constexpr std::uint64_t kClockWindowNs = 50'000;

}  // namespace convtime
