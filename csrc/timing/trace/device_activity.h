#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"

namespace convtime {

enum class ActivityKind { kKernel, kMemcpy, kMemset };

CONVTIME_API const char* to_string(ActivityKind kind);

/// What is the same each time that a kernel is launched, or memory copied or set, in the same way.
struct ActivityInfo {
  ActivityKind kind = ActivityKind::kKernel;
  std::string name;  ///< of a kernel, mangled; empty otherwise
  std::array<std::int32_t, 3> grid{};
  std::array<std::int32_t, 3> block{};
  std::int32_t registers_per_thread = 0;
  std::int32_t shared_memory_bytes = 0;  ///< static and dynamic
  std::uint64_t bytes = 0;               ///< copied or set

  bool operator==(const ActivityInfo&) const = default;
};

/// One piece of work that a device did.
struct DeviceActivity {
  ActivityInfo info;
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint32_t correlation = 0;  ///< of the API call that issued it
};

/// Seconds that the activities took, one after the other.
CONVTIME_API double busy_seconds(std::span<const DeviceActivity> activities);

/// Seconds from the first start to the last end, gaps included; 0 for no activities.
CONVTIME_API double span_seconds(std::span<const DeviceActivity> activities);

/// One activity that calls have in common, and how long it took in each.
struct ActivityColumn {
  ActivityInfo info;            ///< with the name demangled
  std::vector<double> seconds;  ///< one a call; NaN for a call without this activity
};

/// Calls, each with its activities, as a table with a column for each activity that occurs. The
/// same activity twice in a call makes two columns.
CONVTIME_API std::vector<ActivityColumn> tabulate(
    std::span<const std::vector<DeviceActivity>> calls);

}  // namespace convtime
