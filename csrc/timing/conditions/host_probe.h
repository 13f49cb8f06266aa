#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/host_counters.h"
#include "timing/conditions/text_file.h"
#include "timing/judge/host_reading.h"

namespace convtime {

/// Asks the operating system what it did to the threads of this process. On Linux, from getrusage()
/// and /proc (proc(5)), and from the CPU's counters; what a system, or a container, does not have
/// is not known.
class CONVTIME_API HostProbe {
 public:
  /// `proc` and `cgroups` are where these file systems are mounted; `events` are counted as those
  /// of kCpuEvents.
  explicit HostProbe(const std::filesystem::path& proc = "/proc",
                     const std::filesystem::path& cgroups = "/sys/fs/cgroup",
                     const std::array<PerfEvent, 4>& events = kCpuEvents);
  HostProbe(const HostProbe&) = delete;
  HostProbe& operator=(const HostProbe&) = delete;

  /// Begins a reading of what is expected to take that long.
  void begin(double expected_seconds);
  /// What happened since.
  HostReading end();
  /// What happened since this was made.
  HostReading since_made();
  /// The cores that those threads were last on which have computed since this was made; each once.
  std::vector<int> used_cores() const;

  /// What a reading takes, begin and end.
  double read_seconds() const { return read_seconds_; }
  double cores() const { return cores_; }
  std::string missing() const;
  /// Why the CPU's counters are unknown; empty if they are known.
  const std::string& counters_reason() const { return counters_.reason(); }

 private:
  struct Thread {
    int id;
    TextFile schedstat{};  ///< opened for each reading where too many files are open
    TextFile stat{};       ///< the same
    double run_seconds = 0;
    double wait_seconds = 0;
    double waited = 0;          ///< since the last look at it
    bool computes = false;      ///< since the last look at it
    double last_computed = -1;  ///< when it was last seen to have computed; below 0 for never
  };
  struct Moment {
    std::int64_t nanoseconds = 0;
    double cpu_seconds = 0;
    std::int64_t voluntary_switches = 0;
    std::int64_t involuntary_switches = 0;
    std::int64_t minor_faults = 0;
    std::int64_t major_faults = 0;
    int core = -1;
    double throttled_seconds = HostReading::kUnknown;
    double busy_seconds = HostReading::kUnknown;  ///< of the cores that may be used
    double stolen_seconds = HostReading::kUnknown;
  };

  Moment look(bool counts_cores);
  void add_times_of_cores(Moment& moment);
  static HostReading between(const Moment& before, const Moment& after);
  TextFile open(int thread, const char* name) const;
  std::string state_of(const Thread& thread) const;
  bool read_threads();
  void find_threads();
  void find_quotas(const std::filesystem::path& cgroups);
  void watch_quotas(const std::filesystem::path& mount, const std::string& group, bool unified);
  double throttled_seconds() const;
  double running_others(double own) const;

  std::filesystem::path proc_;
  std::string missing_;
  std::vector<int> allowed_cores_;
  double cores_ = 1;
  TextFile tasks_;
  TextFile load_;
  TextFile stat_;
  std::string stat_text_;            ///< of stat_, to be read again
  std::uint64_t task_links_ = 0;     ///< changes with the number of threads
  std::vector<TextFile> throttled_;  ///< cpu.stat of each cgroup with a quota
  std::vector<Thread> threads_;
  HostCounters counters_;  ///< of these threads
  Moment made_;
  Moment began_;
  bool counted_ = false;
  double read_seconds_ = 0;
};

/// Return the clock rate, in hertz, of the core on which the calling thread runs, over some 0.3 ms.
/// It times dependent additions, which take one cycle each. NaN on unsupported architectures.
CONVTIME_API double core_clock_hz();

}  // namespace convtime
