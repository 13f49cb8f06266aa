#pragma once

#include <cupti.h>

#include <cstdint>
#include <memory>
#include <span>

#include "timing/trace/cupti_scope.h"

namespace convtime {

/// Open CUPTI shared with other subscribers of the same kind; returns null if the loaded CUPTI does
/// not support this scope. Throws CuptiError, with the name of a tool that does not share CUPTI.
std::unique_ptr<ActivityScope> open_subscriber_scope(std::span<const CUpti_ActivityKind> kinds);

/// The mode that the process's subscribers have requested, in CUPTI's numbering.
enum class Sharing : std::uint8_t { kRefused = 0, kAllowed = 1, kNobodyAsked = 2, kUnknown = 255 };

Sharing sharing();

/// Read the current time on the clock of the open scope's records, for either scope.
CUptiResult read_activity_clock(std::uint64_t& now);

}  // namespace convtime
