#pragma once

#include <chrono>
#include <cstdint>

namespace convtime {

/// Nanoseconds of a monotonic clock with an arbitrary origin.
inline std::int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Likewise in seconds, which after some days of uptime tell times to tens of nanoseconds only.
inline double now_seconds() { return 1e-9 * static_cast<double>(now_nanoseconds()); }

}  // namespace convtime
