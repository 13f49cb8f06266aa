#include "timing/judge/disturbance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

namespace convtime {
namespace {

/// Shorter waits are those of threads that are woken up, which is part of what a call takes.
constexpr double kShortestWaitSeconds = 50e-6;
/// Of the time of a reading.
constexpr double kWaitShare = 0.01;
constexpr double kThrottledShare = 0.001;
constexpr double kStolenShare = 0.02;
/// Others that compute less are the system's own services.
constexpr double kOthersCores = 0.15;
/// Of the cores: most are two hardware threads of one core, so that with more of them at work some
/// share it.
constexpr double kCrowdedShare = 0.5;
/// What others did is counted in steps of 10 ms.
constexpr double kCountedSeconds = 0.1;
/// 95 % of runs of the same calls, in turn with others on an idle virtual machine of two cores, had
/// medians within 1 % of each other's with one thread, and within 3 % with several, which the
/// system places anew each time. Assumed of other machines.
constexpr double kBetweenRuns = 0.01;
constexpr double kBetweenRunsOfThreads = 0.03;

bool waited(const HostReading& reading) {
  const double enough = std::max(kShortestWaitSeconds, kWaitShare * reading.seconds);
  if (std::isnan(reading.longest_wait_seconds)) {
    return reading.involuntary_switches > 0 && reading.seconds - reading.cpu_seconds > enough;
  }
  return reading.longest_wait_seconds > enough;
}

bool throttled(const HostReading& reading) {
  return reading.throttled_seconds > kThrottledShare * reading.seconds;
}

bool stolen(const HostReading& reading) {
  return reading.stolen_seconds > kStolenShare * reading.seconds;
}

bool crowded(const HostReading& reading, double cores) {
  return reading.others_seconds >= kOthersCores * reading.seconds &&
         reading.cpu_seconds + reading.others_seconds > kCrowdedShare * cores * reading.seconds;
}

/// Of the readings that samples have, each once; what is not known counts for nothing.
HostReading total_of(const HostRecord& record, std::span<const std::size_t> readings) {
  HostReading total{.waiting_seconds = 0,
                    .longest_wait_seconds = 0,
                    .throttled_seconds = 0,
                    .others_seconds = 0,
                    .stolen_seconds = 0};
  for (const std::size_t index : std::set<std::size_t>(readings.begin(), readings.end())) {
    const HostReading& reading = record.readings[index];
    total.seconds += reading.seconds;
    total.cpu_seconds += reading.cpu_seconds;
    total.involuntary_switches += reading.involuntary_switches;
    total.major_faults += reading.major_faults;
    for (double HostReading::* const quantity :
         {&HostReading::longest_wait_seconds, &HostReading::throttled_seconds,
          &HostReading::others_seconds, &HostReading::stolen_seconds}) {
      total.*quantity += std::isnan(reading.*quantity) ? 0 : reading.*quantity;
    }
  }
  return total;
}

std::string format(const char* pattern, double a, double b = 0) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, a, b);
  return text;
}

double percent(double seconds, const HostReading& of) {
  return 100 * std::min(1.0, seconds / of.seconds);
}

}  // namespace

bool is_disturbed(const HostReading& reading, double cores) {
  return waited(reading) || throttled(reading) || stolen(reading) || reading.major_faults > 0 ||
         crowded(reading, cores);
}

std::string describe_disturbance(const HostRecord& record, std::span<const std::size_t> readings) {
  const HostReading total = total_of(record, readings);
  if (!(total.seconds > 0)) {
    return "";
  }
  // What others did is known best over a whole run, if that is long enough.
  const bool counted = record.whole_run.seconds >= kCountedSeconds;
  const HostReading& run = counted ? record.whole_run : total;
  const auto disturbed = std::count_if(readings.begin(), readings.end(), [&](std::size_t index) {
    return is_disturbed(record.readings[index], record.cores);
  });
  // A few disturbed samples do not move a median.
  const bool are_many = 10 * static_cast<std::size_t>(disturbed) > readings.size();

  std::string told;
  const auto tell = [&told](const std::string& what) { told += (told.empty() ? "" : ", ") + what; };
  if (are_many && waited(total)) {
    tell(total.longest_wait_seconds > 0 ? format("waited for a core for %.0f %% of the time",
                                                 percent(total.longest_wait_seconds, total))
                                        : "lost its core to others");
  }
  if (are_many && total.major_faults > 0) {
    tell(format("read %.0f pages from a disk", static_cast<double>(total.major_faults)));
  }
  if ((are_many || counted) && crowded(run, record.cores)) {
    tell(format("shared its %.0f cores with other processes, which used %.1f of them", record.cores,
                run.others_seconds / run.seconds));
  }
  // What lies between two stops has its own time, but there is less of it.
  if (throttled(run)) {
    tell(format("was stopped by a cgroup's quota for %.0f %% of the time",
                percent(run.throttled_seconds, run)));
  }
  if (counted && stolen(run)) {
    tell(format("lost %.0f %% of the time to other virtual machines",
                percent(run.stolen_seconds / record.cores, run)));
  }
  return told;
}

double share_between_runs(const HostRecord& record, std::span<const std::size_t> readings) {
  const auto several = std::count_if(readings.begin(), readings.end(), [&](std::size_t index) {
    return record.readings[index].threads > 1;
  });
  if (readings.empty()) {
    return 0;
  }
  return 2 * static_cast<std::size_t>(several) > readings.size() ? kBetweenRunsOfThreads
                                                                 : kBetweenRuns;
}

}  // namespace convtime
