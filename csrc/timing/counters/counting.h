#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/counters/counters_refused.h"
#include "timing/host_hooks.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// How the kernels of a call are counted.
struct CountingOptions {
  std::vector<std::string> metrics;
  /// Counts all metrics in one call, each kernel of which CUPTI repeats for its passes; and not, in
  /// each of several calls, as many metrics as one pass counts.
  bool replays_kernels = true;
  std::size_t repeats = 1;
  std::span<const FlushBuffer> flush;  ///< touched before each call; none leaves the cache as it is
  HostHooks hooks;
};

/// What was counted.
struct Counted {
  std::vector<ActivityInfo> launches;  ///< kernels that a call launches, in order
  /// Why the values' kernels are not these launches, one by one; empty where they are.
  std::string unnamed;
  std::size_t passes = 0;
  /// For each repeat, for each kernel in the order of launches, the value of each metric.
  std::vector<std::vector<std::vector<double>>> values;
};

/// Counts hardware events in each kernel that a call launches on the current device. Throws
/// CountersRefused, also where CUPTI did not count each of them, std::invalid_argument for a call
/// without kernels, std::runtime_error while a profiler records or a timing does, and what the call
/// throws.
CONVTIME_API Counted count_kernels(Callable& call, const CountingOptions& options);

/// A metric, where the current device's chip has it.
struct DescribedMetric {
  std::string description;
  std::string unit;
  std::string hardware_unit;
};

/// Throws CountersRefused, and std::runtime_error as count_kernels().
CONVTIME_API std::vector<std::optional<DescribedMetric>> describe_metrics(
    std::span<const std::string> names);

/// Names of all metrics of the current device's chip, each with its usual suffix. Throws as
/// describe_metrics().
CONVTIME_API std::vector<std::string> metric_names();

}  // namespace convtime
