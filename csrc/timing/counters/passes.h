#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/cupti_error.h"
#include "timing/callable.h"
#include "timing/counters/profiler.h"
#include "timing/host_hooks.h"

namespace convtime {

/// The call to count, and how.
struct CountedCall {
  Callable& call;
  std::span<const ScheduledMetrics> parts;  ///< of the metrics; each part is counted in separate
                                            ///< calls
  /// Kernels that the call launches; both are equal if there are several parts.
  std::size_t fewest = 0;
  std::size_t most = 0;
  std::size_t repeats = 1;
};

/// The hooks that counting needs.
struct CountingHooks {
  HostHooks host;
  /// Wait until the devices are idle.
  std::function<void()> synchronize;
  /// Throw if the counting must end.
  std::function<void()> require_turn;
};

/// Return the error if CUPTI does not count some of a call's kernels separately.
CuptiError uncounted(const std::string& seen);

/// Make the calls needed to count all metrics. Returns, for each repeat and each counted kernel in
/// launch order, the metrics' values. The preparation of each call is not counted. A
/// ProfilerLibrary must outlive the counting. Throws CuptiError, also if CUPTI counted fewer
/// kernels than the call launches, std::runtime_error if other kernels ran, too, and any exception
/// of the call.
std::vector<std::vector<std::vector<double>>> count_calls(const CountedCall& counted,
                                                          const ProfilerApi& api, CUcontext context,
                                                          const CountingHooks& hooks);

}  // namespace convtime
