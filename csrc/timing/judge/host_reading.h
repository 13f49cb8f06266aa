#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace convtime {

/// Ticks of /proc/stat are 10 ms: shorter readings look at who runs at their end instead.
inline constexpr double kCountedSeconds = 0.1;

/// What the operating system did to this process between two moments, and for it. NaN for what it
/// does not tell.
struct HostReading {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double seconds = 0;
  double cpu_seconds = 0;                  ///< of all threads
  double waiting_seconds = kUnknown;       ///< of threads that could run, for a core, added up
  double longest_wait_seconds = kUnknown;  ///< of the thread that waited longest
  std::int64_t voluntary_switches = 0;
  std::int64_t involuntary_switches = 0;
  std::int64_t minor_faults = 0;
  std::int64_t major_faults = 0;
  bool migrated = false;                ///< whether the calling thread was found on another core
  double threads = kUnknown;            ///< that computed
  double throttled_seconds = kUnknown;  ///< by quotas of cgroups
  double others_seconds = kUnknown;     ///< that other processes computed
  double stolen_seconds = kUnknown;     ///< by the hypervisor, from the cores that may be used
  // By the CPU's counters, in user space and over all threads that ran when the reading began.
  double instructions = kUnknown;
  double cycles = kUnknown;
  double cache_misses = kUnknown;
  double tlb_misses = kUnknown;  ///< of loads, in the data TLB
  std::size_t samples = 0;       ///< taken in it, of all candidates
};

/// All readings of a run.
struct HostRecord {
  std::vector<HostReading> readings;
  HostReading whole_run;        ///< in which what others did is known best
  double cores = 0;             ///< that this process may run on
  std::string missing;          ///< what this system does not tell; empty where it tells all
  std::string counters_reason;  ///< why the CPU's counters are unknown; empty if they are known
  /// Those that the threads which computed were on at the end.
  std::vector<int> used_cores;
};

}  // namespace convtime
