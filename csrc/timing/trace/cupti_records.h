#pragma once

#include <cupti.h>

#include <array>

#include "timing/trace/attribution.h"

namespace convtime {

/// The activity kinds that read_record() supports. API calls come first: they are enabled before
/// all others and disabled after them. Work that another thread issues during this may then lack
/// its activity, which is not an error outside of windows, but no activity lacks the API call that
/// issued it.
inline constexpr std::array kActivityKinds = {
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

/// Add one of CUPTI's records. Skips records of other kinds, and API calls that issue no device
/// work.
void read_record(const CUpti_Activity& record, TraceRecords& records);

}  // namespace convtime
