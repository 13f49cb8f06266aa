#pragma once

#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conv/frontend.h"
#include "conv/listed_engine.h"
#include "conv/problem.h"

namespace convtime::conv {

/// Return at most `count` configurations of one of cuDNN's lists, in its order.
std::vector<cudnn_frontend::ManagedOpaqueDescriptor> configs_of(
    cudnn_frontend::OperationGraph& graph, cudnnBackendHeurMode_t mode,
    std::int64_t count = std::numeric_limits<std::int64_t>::max());

/// Return why PyTorch excludes an engine because of its numerical properties; empty if it does not.
std::string why_excluded(cudnnBackendDescriptor_t config, const Problem& problem);

}  // namespace convtime::conv
