#pragma once

#include <chrono>
#include <cstdint>

namespace convtime {

inline std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Return the nanoseconds of a monotonic clock with an arbitrary origin.
inline std::int64_t now_nanoseconds() { return nanoseconds_of(std::chrono::steady_clock::now()); }

/// Return the same in seconds; after some days of uptime their resolution is only tens of
/// nanoseconds.
inline double now_seconds() { return 1e-9 * static_cast<double>(now_nanoseconds()); }

}  // namespace convtime
