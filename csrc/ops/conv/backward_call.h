#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "conv/pass.h"
#include "ops/conv/conv_settings.h"

namespace convtime::ops {

/// The arguments of a call of convolution_backward. It borrows them all.
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

/// With respect to input, weight and bias; those that are not wanted are undefined.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Calls the op through the dispatcher.
Gradients dispatch(const ConvBackwardCall& call);

/// The gradients of a forward call, whose input may have no batch.
Gradients gradients_of(const at::Tensor& grad_output, const at::Tensor& input,
                       const at::Tensor& weight, const ConvSettings& settings,
                       std::array<bool, 3> output_mask);

/// The gradient of the input alone, of a call with other tensors.
at::Tensor grad_input_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                         const at::Tensor& input, const at::Tensor& weight);

/// As grad_input_of, that of the weight.
at::Tensor grad_weight_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight);

/// The gradient of the bias alone.
at::Tensor grad_bias_of(const at::Tensor& grad_output);

}  // namespace convtime::ops
