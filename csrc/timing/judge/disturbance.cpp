#include "timing/judge/host_reading.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace convtime {
namespace {

/// Shorter waits are wake-ups of threads, which are part of a call's time.
constexpr double kShortestWaitSeconds = 50e-6;
/// Shares of the time of a reading.
constexpr double kWaitShare = 0.01;
constexpr double kThrottledShare = 0.001;
constexpr double kStolenShare = 0.02;
/// Processes that compute less are the system's own services.
constexpr double kOthersCores = 0.15;
/// The share of cores in use. Most cores are two hardware threads of one physical core, so with
/// more in use, some share a physical core.
constexpr double kCrowdedShare = 0.5;
/// The difference between medians of 95 % of runs of the same calls, interleaved with other runs on
/// an idle virtual machine with two cores: within 1 % with one thread, and within 3 % with several
/// threads, which the system places anew each time. Assumed for other machines.
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

/// Sum the readings of samples, each once; unknown values count as zero.
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
  // The activity of other processes is most accurate over a whole run, if it is long enough.
  const bool counted = record.whole_run.seconds >= kCountedSeconds;
  const HostReading& run = counted ? record.whole_run : total;
  const auto disturbed = std::ranges::count_if(readings, [&](std::size_t index) {
    return is_disturbed(record.readings[index], record.cores);
  });
  // A few disturbed samples do not move a median.
  const bool are_many = 10 * static_cast<std::size_t>(disturbed) > readings.size();

  std::string description;
  const auto add = [&](const std::string& cause) {
    description += (description.empty() ? "" : ", ") + cause;
  };
  if (are_many && waited(total)) {
    add(total.longest_wait_seconds > 0 ? format("waited for a core for %.0f %% of the time",
                                                percent(total.longest_wait_seconds, total))
                                       : "lost its core to others");
  }
  if (are_many && total.major_faults > 0) {
    add(format("read %.0f pages from a disk", static_cast<double>(total.major_faults)));
  }
  if ((are_many || counted) && crowded(run, record.cores)) {
    add(format("shared its %.0f cores with other processes, which used %.1f of them", record.cores,
               run.others_seconds / run.seconds));
  }
  // The samples between two throttled periods have undisturbed times, but there are fewer.
  if (throttled(run)) {
    add(format("was stopped by a cgroup's quota for %.0f %% of the time",
               percent(run.throttled_seconds, run)));
  }
  if (counted && stolen(run)) {
    add(format("lost %.0f %% of the time to other virtual machines",
               percent(run.stolen_seconds / record.cores, run)));
  }
  return description;
}

double share_between_runs(const HostRecord& record, std::span<const std::size_t> readings) {
  const auto several = std::ranges::count_if(
      readings, [&](std::size_t index) { return record.readings[index].threads > 1; });
  if (readings.empty()) {
    return 0;
  }
  return 2 * static_cast<std::size_t>(several) > readings.size() ? kBetweenRunsOfThreads
                                                                 : kBetweenRuns;
}

}  // namespace convtime
