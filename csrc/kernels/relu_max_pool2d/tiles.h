#pragma once

#include <cuda_runtime_api.h>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

// Kernels for any window and plane. A block loads the part of the tensors that its tile needs into
// shared memory, and computes from there. Both functions launch nothing and return false if shared
// memory or 32-bit indices are too small.

/// `winners` may be null.
bool launch_forward_tiles(ElementType type, const void* input, void* output, void* winners,
                          const PoolGeometry& geometry, cudaStream_t stream);

bool launch_backward_tiles(ElementType type, const void* grad_output, const void* winners,
                           void* grad_input, const PoolGeometry& geometry, cudaStream_t stream);

}  // namespace convtime::pool
