#pragma once

#include <cudnn.h>

// The headers of the cuDNN frontend that the conv layer uses. The whole frontend (cudnn_frontend.h)
// takes several times as long to compile and needs NVRTC.
#include <cudnn_frontend_EngineConfig.h>
#include <cudnn_frontend_Errata.h>  // needs EngineConfig's declarations before it
#include <cudnn_frontend_ExecutionPlan.h>
#include <cudnn_frontend_Filters.h>
#include <cudnn_frontend_Heuristics.h>
#include <cudnn_frontend_OperationGraph.h>

#include <cstdint>

#include "conv/problem.h"

namespace convtime::conv {

// PyTorch's names of the graph's tensors. They are part of a plan's serialized form.
inline constexpr std::int64_t kIdX = 'x';
inline constexpr std::int64_t kIdY = 'y';
inline constexpr std::int64_t kIdW = 'w';
inline constexpr std::int64_t kIdZ = 'z';
inline constexpr std::int64_t kIdB = 'b';
inline constexpr std::int64_t kIdConvolved = 'C';
inline constexpr std::int64_t kIdAdded = 'A';
inline constexpr std::int64_t kIdBiased = 'B';

/// Create cuDNN's operation graph for a problem: the convolution and the nodes of its epilogue.
cudnn_frontend::OperationGraph make_graph(cudnnHandle_t handle, const Problem& problem);

}  // namespace convtime::conv
