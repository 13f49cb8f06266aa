#pragma once

#include <cstdint>

namespace convtime {

/// Both clocks of one multiprocessor, read together.
struct ClockStamp {
  std::uint64_t nanoseconds = 0;
  std::uint64_t cycles = 0;
  std::uint32_t multiprocessor = 0;
};

}  // namespace convtime
