#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/activation.h"
#include "core/export.h"
#include "kernels/element_type.h"

namespace convtime {

/// Of y = activation(y + alpha * z + b), with a number of b for each channel.
struct ConvEpilogue {
  void* y;
  const void* z;  ///< as y lies in memory; null for none
  const void* b;  ///< null for none
  double alpha;
  Activation activation;
  double negative_slope;  ///< kLeakyRelu
  std::int64_t count;     ///< of y's elements
  std::int64_t channels;
  std::int64_t plane;  ///< elements of an example's channel
  bool channels_last;
};

/// In place, in float for the 16-bit types. Throws CudaError where CUDA refuses the launch.
CONVTIME_API void launch_conv_epilogue(ElementType type, const ConvEpilogue& epilogue,
                                       cudaStream_t stream);

}  // namespace convtime
