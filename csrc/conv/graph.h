#pragma once

#include <cudnn.h>

#include "conv/frontend.h"
#include "conv/problem.h"

namespace convtime::conv {

/// Create cuDNN's operation graph for a problem: the convolution and the nodes of its epilogue.
cudnn_frontend::OperationGraph make_graph(cudnnHandle_t handle, const Problem& problem);

}  // namespace convtime::conv
