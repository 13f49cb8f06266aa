#pragma once

#include <cstddef>
#include <memory>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/timers/device_graph.h"

namespace convtime::ops {

// PyTorch's services for timing. kineto's use of CUPTI is known to the timing layer without a call.

/// Return a small elementwise PyTorch kernel, for the current device and stream.
CONVTIME_API std::unique_ptr<Callable> torch_calibration_reference();

/// Records with PyTorch's own CUDA graphs, so that its allocator and its random number generators
/// know of the recording. Graphs are replayed on PyTorch's current stream.
CONVTIME_API GraphRecorder torch_graph_recorder();

/// A DeviceAllocator that uses PyTorch's allocator, for work on PyTorch's current stream.
CONVTIME_API std::shared_ptr<void> torch_device_memory(std::size_t bytes);

}  // namespace convtime::ops
