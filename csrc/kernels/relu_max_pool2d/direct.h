#pragma once

#include <cuda_runtime_api.h>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

// Kernels for any window, layout and alignment, whose threads load windows from memory. Both
// functions launch nothing and return false if 32-bit indices are too small for a plane.

/// `winners` may be null.
bool launch_forward_direct(ElementType type, const void* input, void* output, void* winners,
                           const PoolGeometry& geometry, cudaStream_t stream);

bool launch_backward_direct(ElementType type, const void* grad_output, const void* winners,
                            void* grad_input, const PoolGeometry& geometry, cudaStream_t stream);

}  // namespace convtime::pool
