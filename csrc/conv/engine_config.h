#pragma once

#include <string>

#include "conv/engine.h"
#include "conv/frontend.h"

namespace convtime::conv {

/// Return the engine and the knobs of a cuDNN engine configuration.
Engine engine_of(cudnnBackendDescriptor_t config);

/// Create cuDNN's configuration of an engine for the graph. Throws std::invalid_argument, listing
/// the supported ones, if the graph does not support the engine, a knob or its value.
cudnn_frontend::ManagedOpaqueDescriptor make_engine_config(
    const cudnn_frontend::OperationGraph& graph, const Engine& engine);

}  // namespace convtime::conv
