#pragma once

#include <cupti.h>

#include <memory>
#include <span>

#include "timing/trace/cupti_scope.h"

namespace convtime {

/// Open CUPTI without subscribers, like kineto. Throws CuptiError.
std::unique_ptr<ActivityScope> open_global_scope(std::span<const CUpti_ActivityKind> kinds);

}  // namespace convtime
