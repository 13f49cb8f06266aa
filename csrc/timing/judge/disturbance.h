#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/export.h"
#include "timing/judge/host_reading.h"

namespace convtime {

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
