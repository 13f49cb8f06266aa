#pragma once

#include <cupti.h>

#include <cstdint>
#include <memory>
#include <span>

#include "timing/trace/cupti_scope.h"

namespace convtime {

/// CUPTI beside others that subscribe to it in the same way; null where the CUPTI that is loaded
/// knows no such scope. Throws CuptiError, with the name of a tool that does not share CUPTI.
std::unique_ptr<ActivityScope> open_subscriber_scope(std::span<const CUpti_ActivityKind> kinds);

/// What the process's subscribers have asked for, as CUPTI numbers it.
enum class Sharing : std::uint8_t { kRefused = 0, kAllowed = 1, kNobodyAsked = 2, kUnknown = 255 };

Sharing sharing();

/// Now, on the clock of the open scope's records, of either kind.
CUptiResult read_activity_clock(std::uint64_t& now);

}  // namespace convtime
