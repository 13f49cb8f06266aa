#pragma once

#include <cuda_runtime_api.h>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

// A block loads the part of the tensors that its tile needs into shared memory, and computes from
// there. Both functions launch nothing and return false if shared memory or 32-bit indices are too
// small, or if no kernel is compiled for these windows and this layout.

/// For any window. If channels are last, their packs of 16 bytes must be whole. `winners` may be
/// null.
bool launch_forward_tiles(ElementType type, const void* input, void* output, void* winners,
                          const PoolGeometry& geometry, cudaStream_t stream);

/// For small square windows of (N, C, H, W).
bool launch_backward_tiles(ElementType type, const void* grad_output, const void* winners,
                           void* grad_input, const PoolGeometry& geometry, cudaStream_t stream);

}  // namespace convtime::pool
