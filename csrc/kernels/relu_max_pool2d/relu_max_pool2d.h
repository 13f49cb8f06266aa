#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/export.h"
#include "kernels/element_type.h"

namespace convtime {

// max_pool2d(relu(x)) in one kernel, and its gradient. Launches throw std::runtime_error if CUDA
// refuses them. They return false, and launch nothing, for planes whose indices do not fit in 32
// bits, and for windows that reach so far.

/// Sizes along one spatial dimension.
struct PoolAxis {
  std::int64_t input;
  std::int64_t output;
  int kernel;
  int stride;
  int padding;
  int dilation;
};

/// Tensors are dense: (N, C, H, W) in memory, or (N, H, W, C) if channels_last.
struct PoolGeometry {
  std::int64_t batch;
  std::int64_t channels;
  PoolAxis h;
  PoolAxis w;
  bool channels_last;
};

/// A winner is the position of the maximum in its window, counted by rows. The highest bit marks an
/// output whose gradient is not propagated: the output is zero, or its window has no element.
/// Winners are bytes if all positions fit in the other bits, otherwise 32-bit integers.
constexpr bool winners_are_bytes(std::int64_t window) { return window <= 128; }

/// `winners` may be null.
CONVTIME_API bool launch_relu_max_pool2d(ElementType type, const void* input, void* output,
                                         void* winners, const PoolGeometry& geometry,
                                         cudaStream_t stream);

/// Sums in the order of the windows, in float for the 16-bit types, so results are bitwise
/// reproducible.
CONVTIME_API bool launch_relu_max_pool2d_backward(ElementType type, const void* grad_output,
                                                  const void* winners, void* grad_input,
                                                  const PoolGeometry& geometry,
                                                  cudaStream_t stream);

/// Write indices into the input's planes, as PyTorch returns them.
CONVTIME_API bool launch_relu_max_pool2d_indices(const void* winners, std::int64_t* indices,
                                                 const PoolGeometry& geometry, cudaStream_t stream);

}  // namespace convtime
