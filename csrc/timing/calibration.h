#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/host_hooks.h"
#include "timing/timers/device_graph.h"

namespace convtime {

/// What is the same for the calls that are corrected and the one that the correction is known from.
struct CalibrationConditions {
  std::span<const FlushBuffer> flush{};  ///< empty for calls without a flush before them
  cudaStream_t stream = nullptr;
  /// Makes a call that issues one kernel of a few microseconds to `stream`, or to the one that a
  /// graph is recorded from. Best a kernel of the library whose calls are timed: after a flush, the
  /// first fetch of its code is part of what is corrected. Without it, a kernel of convtime's own.
  std::function<std::unique_ptr<Callable>()> reference{};
  HostHooks hooks{};
};

/// What a pair of events around one kernel adds to the kernel's own time, on the current device:
/// the median event time of the reference less its CUPTI duration, both behind a gate. The former
/// is measured for each call of this function, since what a launch costs changes in a process (by
/// 0.7 us after a flush on an H200); the latter once. Nothing where the latter was not done yet and
/// CUPTI cannot be used, or must not be (`may_use_cupti`).
CONVTIME_API std::optional<double> event_overhead_seconds(const CalibrationConditions& conditions,
                                                          bool may_use_cupti);

/// Likewise, what a graph timer's time of a call contains beside the call's kernel: the gap to the
/// next one, or the stamps around it.
CONVTIME_API std::optional<double> graph_overhead_seconds(const GraphRecorder& recorder,
                                                          const CalibrationConditions& conditions,
                                                          bool may_use_cupti);

}  // namespace convtime
