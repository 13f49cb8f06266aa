#pragma once

#include <cudnn.h>

#include <string>

#include "conv/engine.h"
#include "conv/plan.h"
#include "core/export.h"

namespace convtime::conv {

/// Return why PyTorch never runs the plan for a problem of that rank: the erratum that forbids it,
/// from ATen's own list or the user's file (CUDNN_ERRATA_JSON_FILE, read once). Empty if none does.
std::string erratum(cudnnHandle_t handle, const CudnnPlan& plan, int rank);

/// The same by the plan's tag, before it is built: without the errata that depend on its kernels.
std::string erratum(cudnnHandle_t handle, const std::string& tag, int rank);

/// Return why no engine may compute an activation that cuDNN supports: the error that was measured
/// in that type. Empty if no error is known.
CONVTIME_API std::string erratum(Activation activation, cudnnDataType_t type, bool allow_tf32);

}  // namespace convtime::conv
