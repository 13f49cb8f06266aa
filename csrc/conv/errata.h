#pragma once

#include <cudnn.h>

#include <string>

#include "conv/plan.h"

namespace convtime::conv {

/// Why PyTorch never runs the plan of a problem of that rank: the erratum of ATen's own list or of
/// the user's file (CUDNN_ERRATA_JSON_FILE, read once) that forbids it. Empty where none does.
std::string erratum(cudnnHandle_t handle, const CudnnPlan& plan, int rank);

}  // namespace convtime::conv
