#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace convtime::ops {

struct Conv2dParams {
  std::array<std::int64_t, 2> stride;
  std::array<std::int64_t, 2> padding;
  std::array<std::int64_t, 2> dilation;
  std::int64_t groups;
};

#ifdef CONVTIME_WITH_CUDA
/// y = conv(x, w) by our own cuDNN plan, for a 4-D input that PyTorch would give to cuDNN.
at::Tensor conv2d_cudnn(const at::Tensor& input, const at::Tensor& weight,
                        const Conv2dParams& params);
#endif

}  // namespace convtime::ops
