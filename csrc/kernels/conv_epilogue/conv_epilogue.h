#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/activation.h"
#include "core/export.h"
#include "kernels/element_type.h"
#include "program/nvrtc.h"

namespace convtime {

/// Arguments of y = activation(y + alpha * z + b), with one value of b per channel.
struct ConvEpilogue {
  void* y;
  const void* z;  ///< same memory layout as y; null for none
  const void* b;  ///< null for none
  double alpha;
  Activation activation;
  double negative_slope;  ///< kLeakyRelu
  std::int64_t count;     ///< number of elements of y
  std::int64_t channels;
  std::int64_t plane;  ///< number of elements per channel of an example
  bool channels_last;
};

// The first launch for a type, an activation, a number of channels, and so on loads a kernel as
// load_kernels() does, and throws what that does. The kernel is for one plane size, but after 16 of
// these for any.

/// Compute in place, in float for the 16-bit types. Throws CudaError if CUDA refuses the launch.
CONVTIME_API void launch_conv_epilogue(ElementType type, const ConvEpilogue& epilogue,
                                       cudaStream_t stream);

/// Compute from channels-last values whose pixels have `pitch` channels, of which y has the first
/// ones.
CONVTIME_API void launch_conv_epilogue_from_channels_last(ElementType type, const void* from,
                                                          std::int64_t pitch,
                                                          const ConvEpilogue& epilogue,
                                                          cudaStream_t stream);

/// Convert a batch of images to channels-last; `plane` is the number of elements of a channel.
CONVTIME_API void launch_to_channels_last(ElementType type, const void* from, void* to,
                                          std::int64_t batch, std::int64_t channels,
                                          std::int64_t plane, cudaStream_t stream);

/// Return the programs of the function without "_sources" for elements to compute: that for one
/// plane size, and that for any. Of pointers, only their alignment and whether they are null count.
CONVTIME_API std::vector<ProgramSource> conv_epilogue_sources(ElementType type,
                                                              const ConvEpilogue& epilogue);
CONVTIME_API std::vector<ProgramSource> conv_epilogue_from_channels_last_sources(
    ElementType type, const void* from, std::int64_t pitch, const ConvEpilogue& epilogue);
CONVTIME_API std::vector<ProgramSource> to_channels_last_sources(ElementType type, const void* from,
                                                                 void* to, std::int64_t batch,
                                                                 std::int64_t channels,
                                                                 std::int64_t plane);

}  // namespace convtime
