#pragma once

#include <linux/perf_event.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"

namespace convtime {

/// An event of perf_event_open(2).
struct PerfEvent {
  std::uint32_t type;
  std::uint64_t config;
};

/// Instructions, cycles, cache misses and dTLB load misses.
inline constexpr std::array<PerfEvent, 4> kCpuEvents{{
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
    {PERF_TYPE_HW_CACHE, PERF_COUNT_HW_CACHE_DTLB | PERF_COUNT_HW_CACHE_OP_READ << 8 |
                             PERF_COUNT_HW_CACHE_RESULT_MISS << 16},
}};

/// Counts events in user space of threads of this process, by perf_event_open(2). The events of a
/// thread are one group, so that all are counted over the same time. Failures are not errors:
/// counts are then NaN, for a reason.
class CONVTIME_API HostCounters {
 public:
  /// Without the first event, nothing is counted; other unavailable events are left out.
  explicit HostCounters(std::span<const PerfEvent> events);
  ~HostCounters();
  HostCounters(const HostCounters&) = delete;
  HostCounters& operator=(const HostCounters&) = delete;

  /// Counts these threads, and no others, from now on.
  void follow(std::span<const int> threads);
  /// Begins a count.
  void begin();
  /// Counts of each event since begin(), summed over threads; NaN where unknown.
  const std::vector<double>& end();
  /// Why a count was unknown, in one sentence; empty if none was.
  const std::string& reason() const { return reason_; }

 private:
  /// What read(2) gives of a group: its size, the nanoseconds it was enabled and running, counts.
  using Values = std::vector<std::uint64_t>;
  struct Group {
    Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();

    std::vector<int> files;  ///< the leader's first
    Values began;            ///< empty if it could not be read
  };

  bool counts() const { return !available_.empty(); }
  int open_group(int thread, Group& group) const;
  bool read_group(const Group& group, Values& values) const;
  bool add_counts(const Group& group);
  void give_up(std::string reason);

  std::vector<PerfEvent> events_;
  std::vector<std::size_t> available_;  ///< indices of events, in the order of a group
  std::map<int, Group> groups_;         ///< by thread
  Values now_;
  std::vector<double> counts_;
  std::string reason_;
};

}  // namespace convtime
