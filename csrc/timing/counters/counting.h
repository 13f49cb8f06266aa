#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cupti_error.h"
#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/host_hooks.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// How the kernels of a call are counted.
struct CountingOptions {
  std::vector<std::string> metrics;
  /// If true, count all metrics in one call and let CUPTI repeat each kernel for its passes. If
  /// false, make several calls, each with as many metrics as fit in one pass.
  bool replays_kernels = true;
  std::size_t repeats = 1;
  std::span<const FlushBuffer> flush;  ///< accessed before each call; if empty, the cache is left
                                       ///< unchanged
  HostHooks hooks;
};

/// The result of counting.
struct Counted {
  std::vector<ActivityInfo> launches;  ///< kernels that a call launches, in order
  /// Why the values' kernels do not correspond to these launches one to one; empty if they do.
  std::string unnamed;
  std::size_t passes = 0;
  /// For each repeat, for each kernel in the order of launches, the value of each metric.
  std::vector<std::vector<std::vector<double>>> values;
};

/// Count hardware events in each kernel that a call launches on the current device. Throws
/// CuptiError if CUPTI refuses or does not count each kernel, std::invalid_argument for a call
/// without kernels, std::runtime_error while a profiler or another timing is active, and any
/// exception of the call.
CONVTIME_API Counted count_kernels(Callable& call, const CountingOptions& options);

/// A metric that the current device's chip supports.
struct DescribedMetric {
  std::string description;
  std::string unit;           ///< for example "byte", "percent" or "byte/second"
  std::string hardware_unit;  ///< the unit that counts it, for example "dram"
};

/// Throws CuptiError, and std::runtime_error like count_kernels().
CONVTIME_API std::vector<std::optional<DescribedMetric>> describe_metrics(
    std::span<const std::string> names);

/// Return the names of all metrics of the current device's chip, each with its usual suffix. Throws
/// like describe_metrics().
CONVTIME_API std::vector<std::string> metric_names();

}  // namespace convtime
