#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "timing/callable.h"
#include "timing/counters/metric_host.h"
#include "timing/counters/range_profiler.h"
#include "timing/host_hooks.h"

namespace convtime {

/// What is counted of a call, and how.
struct CountedCall {
  Callable& call;
  std::span<const char* const> metrics;
  const CounterSchedule& schedule;
  std::size_t launches = 0;  ///< kernels that the call launches
  Replay replay = Replay::kCall;
};

/// What counting needs of the program around it.
struct CountingHooks {
  HostHooks host;
  /// Waits until the devices are idle.
  std::function<void()> synchronize;
  /// Throws where the counting is to end.
  std::function<void()> require_turn;
};

/// Makes the passes of a call that it takes to count all of the metrics, and gives for each kernel
/// that was counted, in the order of their launches, the metrics' values. Each call is prepared
/// outside of what is counted. Throws CuptiError, std::runtime_error where more kernels ran than
/// the call launches, and what the call throws.
std::vector<std::vector<double>> count_passes(const CountedCall& counted, RangeProfiler& profiler,
                                              const MetricHost& host, const CountingHooks& hooks);

}  // namespace convtime
