#pragma once

#include <cudnn.h>

#include "conv/plan.h"
#include "conv/policy.h"
#include "conv/selection.h"

namespace convtime::conv {

/// Enqueues the key's convolution on the handle's stream: with this thread's plan where it has one,
/// else with one of the choice that any thread made, else of a choice of its own. A plan that is
/// refused gives way to a new selection. Throws as select_plan does, and std::runtime_error where
/// plans would have to be timed on a stream that a CUDA graph is being captured from.
void convolve(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
              Workspace& workspace);

}  // namespace convtime::conv
