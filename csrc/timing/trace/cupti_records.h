#pragma once

#include <cupti.h>

#include <array>

#include "timing/trace/attribution.h"

namespace convtime {

/// What read_record() understands. API calls come first, to be turned on before and off after all
/// others: what another thread issues meanwhile may then lack its activity, which is never missed
/// outside of windows, but no activity the API call that issued it.
inline constexpr std::array kActivityKinds = {
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

/// Adds one of CUPTI's records; those of other kinds are passed over, and API calls that give a
/// device nothing to do.
void read_record(const CUpti_Activity& record, TraceRecords& records);

}  // namespace convtime
