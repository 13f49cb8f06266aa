#pragma once

#include <string>

#include "conv/engine.h"
#include "conv/frontend.h"

namespace convtime::conv {

/// The engine and the knobs that a configuration of cuDNN's stands for.
Engine engine_of(cudnnBackendDescriptor_t config);

/// cuDNN's configuration of an engine for the graph. Throws std::invalid_argument, with what there
/// is, for an engine, a knob or a value that cuDNN does not have for it.
cudnn_frontend::ManagedOpaqueDescriptor make_engine_config(
    const cudnn_frontend::OperationGraph& graph, const Engine& engine);

}  // namespace convtime::conv
