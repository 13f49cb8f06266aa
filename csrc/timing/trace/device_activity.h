#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"

namespace convtime {

enum class ActivityKind { kKernel, kMemcpy, kMemset };

CONVTIME_API const char* to_string(ActivityKind kind);

/// What is the same each time that a kernel is launched, or memory copied or set, in the same way.
struct ActivityInfo {
  ActivityKind kind = ActivityKind::kKernel;
  /// Of a kernel, mangled; empty otherwise. The text outlives the activity: see interned().
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

/// One piece of work that a device did.
struct DeviceActivity {
  ActivityInfo info;
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint32_t correlation = 0;  ///< of the API call that issued it
  std::uint32_t stream = 0;       ///< as the tracer numbers them
  std::uint32_t graph = 0;        ///< that it is a node of, as the tracer numbers them; 0 for none
  std::uint64_t issued_ns = 0;    ///< when that call was made
  std::uint32_t issued_by = 0;    ///< the thread that made it, as the tracer numbers them
  /// Whether it overlaps the preparation of its own call, or of the next one: it is on another
  /// stream than the one that is held and flushed, and nothing orders the two.
  bool unordered = false;
};

/// A kernel's name as its source has it, or the same name where it is none of C++'s.
CONVTIME_API std::string demangle(std::string_view name);

/// The same text for as long as the process lives: many activities share a few names.
CONVTIME_API std::string_view interned(std::string_view name);

/// How one time is made of a call's activities.
enum class Metric {
  kBusy,  ///< busy_seconds()
  kSpan,  ///< span_seconds()
  kSum,   ///< sum_seconds()
};

CONVTIME_API const char* to_string(Metric metric);
/// Throws std::invalid_argument with the allowed names.
CONVTIME_API Metric metric_from_string(const std::string& name);

/// Seconds in which at least one of the activities, ordered by their start, ran.
CONVTIME_API double busy_seconds(std::span<const DeviceActivity> activities);

/// Seconds from the first start to the last end, gaps included; 0 for no activities.
CONVTIME_API double span_seconds(std::span<const DeviceActivity> activities);

/// Durations added up: more than busy_seconds() where activities ran at the same time.
CONVTIME_API double sum_seconds(std::span<const DeviceActivity> activities);

CONVTIME_API double seconds_by(Metric metric, std::span<const DeviceActivity> activities);

/// One activity that calls have in common, and how long it took in each.
struct ActivityColumn {
  ActivityInfo info;
  std::string name;                    ///< demangled
  std::vector<std::uint32_t> streams;  ///< that it was seen on, ascending
  std::vector<double> seconds;         ///< one a call; NaN for a call without this activity
};

/// Calls, each with its activities, as a table with a column for each activity that occurs. The
/// same activity twice in a call makes two columns.
CONVTIME_API std::vector<ActivityColumn> tabulate(
    std::span<const std::vector<DeviceActivity>> calls);

}  // namespace convtime
