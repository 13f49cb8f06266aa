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

/// Creates a host without metrics.
using MakeHost = std::function<std::unique_ptr<MetricHost>()>;

/// Schedule all metrics together, in as many passes as needed. Throws CuptiError, like all
/// functions here.
ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names);

/// Schedule the metrics in order, as many together as fit in one pass. A metric that needs several
/// passes is separate.
std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names);

}  // namespace convtime
