#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "core/export.h"
#include "timing/cache_flush.h"
#include "timing/device_graph.h"

namespace convtime {

/// What is the same for the calls that are corrected and the kernel that the correction is known
/// from.
struct CalibrationConditions {
  std::span<const FlushBuffer> flush{};  ///< empty for calls without a flush before them
  cudaStream_t stream = nullptr;
};

/// What a pair of events around one kernel adds to the kernel's own time, on the current device:
/// the median event time of a kernel of 2 us less its CUPTI duration, both behind a gate. Measured
/// once for each device, with and without a flush, in a process. Nothing where that was not done
/// yet and CUPTI cannot be used, or must not be (`may_use_cupti`).
CONVTIME_API std::optional<double> event_overhead_seconds(const CalibrationConditions& conditions,
                                                          bool may_use_cupti);

/// Likewise, what a graph timer's time of a call contains beside the call's kernel: the gap to the
/// next one, or the stamps around it.
CONVTIME_API std::optional<double> graph_overhead_seconds(const GraphRecorder& recorder,
                                                          const CalibrationConditions& conditions,
                                                          bool may_use_cupti);

}  // namespace convtime
