#pragma once

#include "core/export.h"
#include "timing/timers/device_graph.h"

namespace convtime::ops {

/// Records with PyTorch's own CUDA graphs, so that its allocator and its random number generators
/// know of the recording. Graphs are replayed on PyTorch's current stream.
CONVTIME_API GraphRecorder torch_graph_recorder();

}  // namespace convtime::ops
