#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"

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

// Conditions that lengthen a call on the CPU from outside. The call's own actions (it sleeps, or
// touches new pages) are part of its time, and not a disturbance.

/// Return whether calls took longer, according to a reading: a thread waited for a core, a quota or
/// the hypervisor stopped the process, pages were read from a disk, or other processes left it too
/// few cores. `cores` is the number on which it may run.
CONVTIME_API bool is_disturbed(const HostReading& reading, double cores);

/// Describe what disturbed calls with these readings, and by how much; empty if nothing did.
/// `readings` are indices into the record's readings, one per sample.
CONVTIME_API std::string describe_disturbance(const HostRecord& record,
                                              std::span<const std::size_t> readings);

/// Return by how much the median of calls on the CPU may differ in another run, as a share of the
/// median. Other processes have different memory, cores and clocks, which the samples of one run do
/// not show. 0 if there are no readings.
CONVTIME_API double share_between_runs(const HostRecord& record,
                                       std::span<const std::size_t> readings);

/// The error of the ratio of two equally fast candidates due to the placement of their tensors in a
/// CPU's memory. The ratio of two calls of the same work on copies of its tensors had at most this
/// error in 98 % of comparisons, on a virtual machine with two cores. Assumed for other machines.
inline constexpr double kDoubtOfCpuRatios = 0.02;

}  // namespace convtime
