#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "timing/callable.h"
#include "timing/counters/profiler_api.h"
#include "timing/counters/scheduling.h"
#include "timing/host_hooks.h"

namespace convtime {

/// What is counted of a call, and how.
struct CountedCall {
  Callable& call;
  std::span<const ScheduledMetrics> parts;  ///< of the metrics; each is counted in calls of its own
  /// Kernels that the call launches; both are the same where there are several parts.
  std::size_t fewest = 0;
  std::size_t most = 0;
  std::size_t repeats = 1;
};

/// What counting needs of the program around it.
struct CountingHooks {
  HostHooks host;
  /// Waits until the devices are idle.
  std::function<void()> synchronize;
  /// Throws where the counting is to end.
  std::function<void()> require_turn;
};

/// Makes the calls that it takes to count all metrics, and gives for each repeat and each kernel
/// that was counted, in the order of their launches, the metrics' values. Each call is prepared
/// outside of what is counted. For a ProfilerLibrary that outlives it. Throws CuptiError,
/// CountersRefused where CUPTI counted fewer kernels than the call launches, std::runtime_error
/// where others ran, too, and what the call throws.
std::vector<std::vector<std::vector<double>>> count_calls(const CountedCall& counted,
                                                          const ProfilerApi& api, CUcontext context,
                                                          const CountingHooks& hooks);

}  // namespace convtime
