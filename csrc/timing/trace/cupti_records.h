#pragma once

#include <cupti.h>

#include <array>

#include "timing/trace/attribution.h"

namespace convtime {

/// What read_record() understands.
inline constexpr std::array kActivityKinds = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

/// Adds one of CUPTI's records; those of other kinds are passed over, and API calls that give a
/// device nothing to do.
void read_record(const CUpti_Activity& record, TraceRecords& records);

}  // namespace convtime
