#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/export.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// A call of the CUDA runtime or driver, on any thread.
struct ApiCall {
  std::uint64_t start = 0;  ///< in ticks of the tracer's clock
  std::uint32_t correlation = 0;
};

/// A stretch of host time, in the ticks of API calls.
struct Window {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// What a tracer saw.
struct TraceRecords {
  std::vector<DeviceActivity> activities;
  std::vector<ApiCall> api_calls;
};

/// For each window, which follow each other in time, the device's activities that were issued in
/// it, ordered by their start. Activities are matched by the API call that issued them, so that
/// work issued by other threads (autograd's) counts, and work that runs later than its window too.
CONVTIME_API std::vector<std::vector<DeviceActivity>> attribute(
    std::span<const Window> windows, std::span<const ApiCall> api_calls,
    std::vector<DeviceActivity> activities);

}  // namespace convtime
