#pragma once

#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conv/engine.h"
#include "conv/graph.h"
#include "conv/listed_engine.h"
#include "conv/problem.h"

namespace convtime::conv {

EngineFacts facts_of(cudnnBackendDescriptor_t config);

/// cuDNN's name of a note, without the prefix that all have.
std::string note_name(cudnnBackendNumericalNote_t note);
std::string note_name(cudnnBackendBehaviorNote_t note);

/// Return the engine and the knobs of a cuDNN engine configuration.
Engine engine_of(cudnnBackendDescriptor_t config);

/// Return the number of engines that cuDNN has for the graph's operation. Their indices start at 0;
/// not each of them supports the graph.
std::int64_t count_engines(const cudnn_frontend::OperationGraph& graph);

/// Create cuDNN's configuration of an engine with its default knobs. Throws CudnnError if the graph
/// does not support it.
cudnn_frontend::ManagedOpaqueDescriptor make_default_config(
    const cudnn_frontend::OperationGraph& graph, std::int64_t index);

/// Create cuDNN's configuration of an engine for the graph. Throws std::invalid_argument, listing
/// the supported ones, if the graph does not support the engine, a knob or its value.
cudnn_frontend::ManagedOpaqueDescriptor make_engine_config(
    const cudnn_frontend::OperationGraph& graph, const Engine& engine);

/// Return at most `count` configurations of one of cuDNN's lists, in its order.
std::vector<cudnn_frontend::ManagedOpaqueDescriptor> configs_of(
    cudnn_frontend::OperationGraph& graph, cudnnBackendHeurMode_t mode,
    std::int64_t count = std::numeric_limits<std::int64_t>::max());

/// Return why PyTorch excludes an engine because of its numerical properties; empty if it does not.
std::string why_excluded(cudnnBackendDescriptor_t config, const Problem& problem);

}  // namespace convtime::conv
