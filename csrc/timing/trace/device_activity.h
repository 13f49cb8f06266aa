#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/export.h"

namespace convtime {

enum class ActivityKind { kKernel, kMemcpy, kMemset };
constexpr auto names_of(ActivityKind /*all*/) { return std::array{"kernel", "memcpy", "memset"}; }

/// The properties shared by all launches of a kernel, or by all copies or memsets, of the same
/// form.
struct ActivityInfo {
  ActivityKind kind = ActivityKind::kKernel;
  /// Mangled name of a kernel; empty otherwise. The text outlives the activity: see interned().
  std::string_view name;
  std::array<std::int32_t, 3> grid{};
  std::array<std::int32_t, 3> block{};
  std::int32_t registers_per_thread = 0;
  std::int32_t shared_memory_bytes = 0;  ///< static and dynamic
  std::uint64_t bytes = 0;               ///< copied or set
  std::uint32_t device = 0;

  bool operator==(const ActivityInfo&) const = default;
};

struct CONVTIME_API HashActivityInfo {
  std::size_t operator()(const ActivityInfo& info) const;
};

/// One activity of a device.
struct DeviceActivity {
  ActivityInfo info;
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint32_t correlation = 0;  ///< ID of the API call that issued it
  std::uint32_t stream = 0;       ///< the tracer's number
  std::uint32_t graph = 0;        ///< the graph of this node, by the tracer's number; 0 for none
  std::uint64_t issued_ns = 0;    ///< when that call was made
  std::uint32_t issued_by = 0;    ///< thread that made the call, by the tracer's number
  /// Whether it overlaps the preparation of its own call, or of the next one: it is on a different
  /// stream than the one that is held and flushed, and the two are not ordered.
  bool unordered = false;
};

/// Return a kernel's name as in its source, or the same name if it is not a C++ name.
CONVTIME_API std::string demangle(std::string_view name);

/// Return the same text, valid as long as the process: many activities share a few names.
CONVTIME_API std::string_view interned(std::string_view name);

/// How a call's activities are combined into one time.
enum class Metric {
  kBusy,  ///< busy_seconds()
  kSpan,  ///< span_seconds()
  kSum,   ///< sum_seconds()
};
constexpr auto names_of(Metric /*all*/) { return std::array{"busy", "span", "sum"}; }

/// Return the seconds in which at least one of the activities, ordered by start time, ran.
CONVTIME_API double busy_seconds(std::span<const DeviceActivity> activities);

/// Return the seconds from the first start to the last end, including gaps; 0 for no activities.
CONVTIME_API double span_seconds(std::span<const DeviceActivity> activities);

/// Return the sum of the durations: more than busy_seconds() if activities overlapped.
CONVTIME_API double sum_seconds(std::span<const DeviceActivity> activities);

CONVTIME_API double seconds_by(Metric metric, std::span<const DeviceActivity> activities);

/// An activity that occurs in calls, and its duration in each call.
struct ActivityColumn {
  ActivityInfo info;
  std::string name;                    ///< demangled
  std::vector<std::uint32_t> streams;  ///< the streams on which it ran, ascending
  std::vector<double> seconds;         ///< one per call; NaN for a call without this activity
};

/// Convert calls with their activities to a table with one column per activity. An activity that
/// occurs twice in a call gets two columns.
CONVTIME_API std::vector<ActivityColumn> tabulate(
    std::span<const std::vector<DeviceActivity>> calls);

}  // namespace convtime
