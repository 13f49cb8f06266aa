#include "timing/counters/scheduling.h"

#include <utility>

namespace convtime {

ScheduledMetrics schedule_together(const MakeHost& make_host, std::span<const char* const> names) {
  ScheduledMetrics scheduled{{names.begin(), names.end()}, make_host(), {}};
  scheduled.schedule = scheduled.host->schedule(scheduled.names);
  return scheduled;
}

std::vector<ScheduledMetrics> schedule_by_pass(const MakeHost& make_host,
                                               std::span<const char* const> names) {
  std::vector<ScheduledMetrics> parts;
  for (std::size_t first = 0, next = 0; next < names.size(); ++next) {
    const std::size_t count = next - first + 1;
    ScheduledMetrics part = schedule_together(make_host, names.subspan(first, count));
    if (count > 1 && part.schedule.passes <= 1) {
      parts.back() = std::move(part);
      continue;
    }
    if (count > 1) {
      part = schedule_together(make_host, names.subspan(next, 1));
    }
    // A metric that needs several passes is counted separately.
    first = part.schedule.passes <= 1 ? next : next + 1;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace convtime
