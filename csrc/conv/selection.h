#pragma once

#include <cudnn.h>

#include <functional>

#include "conv/plan.h"
#include "conv/problem.h"

namespace convtime::conv {

/// Selects as PyTorch does with cudnn.benchmark off: the first plan of cuDNN's instant heuristics,
/// then of its fallback list, that passes PyTorch's filters and errata and that runs (ATen,
/// native/cudnn/Conv_v8.cpp). `try_run` runs the plan for real and returns false where it cannot be
/// afforded (no memory for its workspace); a std::runtime_error of it counts as a refusal too.
/// Throws std::runtime_error that names the refused plans where none runs.
Plan select_as_pytorch(cudnnHandle_t handle, const Problem& problem,
                       const std::function<bool(const Plan&)>& try_run);

}  // namespace convtime::conv
