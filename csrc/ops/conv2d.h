#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/export.h"
#include "ops/conv_policy.h"

namespace convtime::ops {

using Conv2dSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, c10::SymIntArrayRef,
                                   c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt,
                                   std::optional<std::string_view>);
using Conv2dBackwardSignature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
    c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt, std::array<bool, 3>,
    std::optional<std::string_view>);

/// The dispatcher's handle of convtime::conv2d.
CONVTIME_API const c10::TypedOperatorHandle<Conv2dSignature>& conv2d_op();

/// The dispatcher's handle of convtime::conv2d_backward.
const c10::TypedOperatorHandle<Conv2dBackwardSignature>& conv2d_backward_op();

/// A convolution's numbers, one for each spatial dimension.
struct ConvParams {
  using Numbers = c10::SmallVector<std::int64_t, 3>;

  Numbers stride;
  Numbers padding;
  Numbers dilation;
  std::int64_t groups;
};

#ifdef CONVTIME_WITH_CUDA
// By our own cuDNN plans, for what PyTorch would give to cuDNN. The layouts of operands and results
// are PyTorch's, and so are the plans under the policies "heuristic" and "benchmark".

/// y of y = conv(x, w), less the bias.
at::Tensor cudnn_fprop(const at::Tensor& input, const at::Tensor& weight, const ConvParams& params,
                       const PolicyRequest& policy);

/// The gradients of input and weight; those that are not wanted are undefined.
std::tuple<at::Tensor, at::Tensor> cudnn_backward(const at::Tensor& grad_output,
                                                  const at::Tensor& input, const at::Tensor& weight,
                                                  const ConvParams& params,
                                                  std::array<bool, 2> wanted,
                                                  const PolicyRequest& policy);

/// A call that only has cuDNN execute the ready plan of y = conv(x, w), on the current stream and
/// for this thread: no convolution costs the host less. Throws c10::Error where input and weight
/// would have to be copied first.
CONVTIME_API std::function<void()> cudnn_execute_only(const at::Tensor& x, const at::Tensor& w,
                                                      const ConvParams& params);
#endif

}  // namespace convtime::ops
