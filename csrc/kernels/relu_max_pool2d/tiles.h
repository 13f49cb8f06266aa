#pragma once

#include <cuda_runtime_api.h>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

// A block loads the part of the outputs' gradients that its tile needs into shared memory, and
// computes from there.

/// For small square windows of (N, C, H, W). Launches nothing and returns false if shared memory or
/// 32-bit indices are too small, or if no kernel is compiled for these windows and this layout.
bool launch_backward_tiles(ElementType type, const void* grad_output, const void* winners,
                           void* grad_input, const PoolGeometry& geometry, cudaStream_t stream);

}  // namespace convtime::pool
