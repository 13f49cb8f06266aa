#pragma once

#include "conv/plan.h"
#include "conv/problem.h"
#include "core/lru_cache.h"

namespace convtime::conv {

using PlanCache = LruCache<Problem, Plan, ProblemHash>;

/// The calling thread's plans: cuDNN's plans must not be shared between threads.
PlanCache& plan_cache_of_this_thread();

}  // namespace convtime::conv
