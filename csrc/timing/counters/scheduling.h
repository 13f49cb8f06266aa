#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "timing/counters/metric_host.h"

namespace convtime {

/// Metrics that are counted together, and how.
struct ScheduledMetrics {
  std::vector<const char*> names;
  std::unique_ptr<MetricHost> host;
  CounterSchedule schedule;
};

/// Makes a host without metrics.
using MakeHost = std::function<std::unique_ptr<MetricHost>()>;

/// All metrics together, in as many passes as that takes. Throws CuptiError, as everything here
/// does.
ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names);

/// The metrics in their order, as many together as one pass counts. One that takes several passes
/// is by itself.
std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names);

}  // namespace convtime
