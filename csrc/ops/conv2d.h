#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <cstdint>
#include <optional>

namespace convtime::ops {

using Conv2dSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, c10::SymIntArrayRef,
                                   c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt);

/// The dispatcher's handle of convtime::conv2d.
const c10::TypedOperatorHandle<Conv2dSignature>& conv2d_op();

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
