#pragma once

#include <optional>

#include "core/export.h"

namespace convtime {

/// What a pair of events around one kernel adds to the kernel's own time on the current device:
/// the median event time of an empty kernel less its CUPTI duration, both behind a gate. Measured
/// once for each device and process; nothing where that was not done yet and CUPTI cannot be used,
/// or must not be (`may_use_cupti`).
CONVTIME_API std::optional<double> event_overhead_seconds(bool may_use_cupti);

}  // namespace convtime
