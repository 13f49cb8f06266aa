#pragma once

#include <cudnn.h>

#include <string>

#include "conv/activation.h"
#include "conv/plan.h"
#include "core/export.h"

namespace convtime::conv {

/// Why PyTorch never runs the plan of a problem of that rank: the erratum of ATen's own list or of
/// the user's file (CUDNN_ERRATA_JSON_FILE, read once) that forbids it. Empty where none does.
std::string erratum(cudnnHandle_t handle, const CudnnPlan& plan, int rank);

/// Why no engine is to compute an activation, though cuDNN has some: what they were measured to get
/// wrong in that type. Empty where nothing is known.
CONVTIME_API std::string erratum(Activation activation, cudnnDataType_t type, bool allow_tf32);

}  // namespace convtime::conv
