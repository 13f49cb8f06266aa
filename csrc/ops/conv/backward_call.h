#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "conv/engine.h"
#include "ops/conv/conv_settings.h"

namespace convtime::ops {

/// The arguments of a convolution_backward call, as references.
struct ConvBackwardCall {
  const at::Tensor& grad_output;
  const at::Tensor& input;
  const at::Tensor& weight;
  c10::SymIntArrayRef stride;
  c10::SymIntArrayRef padding;
  c10::SymIntArrayRef dilation;
  bool transposed;
  c10::SymIntArrayRef output_padding;
  const c10::SymInt& groups;
  std::array<bool, 3> output_mask;
  std::optional<std::string_view> policy;
};

/// With respect to input, weight and bias; gradients that are not requested are undefined.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Call the op through the dispatcher.
Gradients dispatch(const ConvBackwardCall& call);

/// Return the gradients of a forward call, whose input may be unbatched.
Gradients gradients_of(const at::Tensor& grad_output, const at::Tensor& input,
                       const at::Tensor& weight, const ConvSettings& settings,
                       std::array<bool, 3> output_mask);

/// Return only the gradient of the input, for a call with other tensors.
at::Tensor grad_input_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                         const at::Tensor& input, const at::Tensor& weight);

/// Return only the gradient of the weight, like grad_input_of().
at::Tensor grad_weight_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight);

/// Return only the gradient of the bias.
at::Tensor grad_bias_of(const at::Tensor& grad_output);

}  // namespace convtime::ops
