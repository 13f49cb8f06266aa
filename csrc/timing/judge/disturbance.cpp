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
/// Of the cores: with more of them at work, hardware threads of one core, caches and the clock are
/// shared with others, too.
constexpr double kCrowdedShare = 0.75;
/// What others did is counted in steps of 10 ms.
constexpr double kCountedSeconds = 0.1;

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

/// Sums over readings, of each once; NaN counts for nothing.
double sum_of(const std::vector<HostReading>& readings, double HostReading::* quantity) {
  double sum = 0;
  for (const HostReading& reading : readings) {
    sum += std::isnan(reading.*quantity) ? 0 : reading.*quantity;
  }
  return sum;
}

std::string format(const char* pattern, double a, double b = 0) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, a, b);
  return text;
}

}  // namespace

bool is_disturbed(const HostReading& reading, double cores) {
  return waited(reading) || throttled(reading) || stolen(reading) || reading.major_faults > 0 ||
         crowded(reading, cores);
}

std::string describe_disturbance(const HostRecord& record, std::span<const std::size_t> readings) {
  std::vector<HostReading> used;
  bool any_waited = false;
  bool any_crowded = false;
  std::size_t disturbed = 0;
  for (const std::size_t index : readings) {
    disturbed += is_disturbed(record.readings[index], record.cores) ? 1 : 0;
  }
  for (const std::size_t index : std::set<std::size_t>(readings.begin(), readings.end())) {
    const HostReading& reading = record.readings[index];
    used.push_back(reading);
    any_waited |= waited(reading);
    any_crowded |= crowded(reading, record.cores);
  }
  const HostReading& run = record.whole_run;
  const bool counted = run.seconds >= kCountedSeconds;
  const bool run_crowded = counted && crowded(run, record.cores);
  const bool run_stolen = counted && stolen(run);
  // A median is none of its disturbed samples where these are few.
  const bool are_few = 10 * disturbed <= readings.size();
  std::vector<std::string> told;
  const double seconds = sum_of(used, &HostReading::seconds);
  if (!(seconds > 0)) {
    return "";
  }
  if (!are_few) {
    if (any_waited) {
      const double waits = sum_of(used, &HostReading::longest_wait_seconds);
      told.push_back(waits > 0 ? format("waited for a core for %.0f %% of the time",
                                        100 * std::min(1.0, waits / seconds))
                               : "other threads took its core");
    }
    if (const double share = sum_of(used, &HostReading::throttled_seconds) / seconds;
        share > kThrottledShare) {
      told.push_back(format("was stopped by a cgroup's quota for %.0f %% of the time",
                            100 * std::min(1.0, share)));
    }
    if (const double faults =
            [&] {
              double sum = 0;
              for (const HostReading& reading : used) {
                sum += static_cast<double>(reading.major_faults);
              }
              return sum;
            }();
        faults > 0) {
      told.push_back(format("read %.0f pages from a disk", faults));
    }
  }
  if (run_crowded || (any_crowded && !are_few)) {
    const double others = run_crowded ? run.others_seconds / run.seconds
                                      : sum_of(used, &HostReading::others_seconds) / seconds;
    told.push_back(format("shared its %.0f cores with other processes, which used %.1f of them",
                          record.cores, others));
  }
  if (run_stolen) {
    told.push_back(format("had %.0f %% of its time taken by other virtual machines",
                          100 * run.stolen_seconds / (run.seconds * record.cores)));
  }
  std::string sentence;
  for (const std::string& part : told) {
    sentence += (sentence.empty() ? "" : ", ") + part;
  }
  return sentence;
}

}  // namespace convtime
