#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/export.h"
#include "timing/judge/host_reading.h"

namespace convtime {

// What keeps a call on the CPU from taking its own time. What a call does to itself (it sleeps, or
// touches new pages) is part of its time, and no disturbance.

/// Whether calls took longer, as far as a reading of them tells: a thread waited for a core, a
/// quota or the hypervisor stopped the process, pages came from a disk, or other processes computed
/// and left it too few cores. On `cores` that it may run on.
CONVTIME_API bool is_disturbed(const HostReading& reading, double cores);

/// What disturbed calls with these readings, and by how much; empty where nothing did. `readings`
/// are indices of the record's, each as often as it has samples.
CONVTIME_API std::string describe_disturbance(const HostRecord& record,
                                              std::span<const std::size_t> readings);

/// By how much the median of calls on the CPU may differ in another run, as a share of it: other
/// processes run elsewhere in memory, on other cores and at other clocks, which the samples of one
/// run do not show. 0 where there are no readings.
CONVTIME_API double share_between_runs(const HostRecord& record,
                                       std::span<const std::size_t> readings);

/// What the places of their tensors in a CPU's memory may make of the ratio of two candidates that
/// take equally long: as much as that of two calls of the same work on copies of its tensors was
/// off in 98 % of comparisons, on a virtual machine of two cores. Assumed of other machines.
inline constexpr double kDoubtOfCpuRatios = 0.02;

}  // namespace convtime
