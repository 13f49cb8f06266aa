#pragma once

#include <ATen/core/Tensor.h>

#include "conv/activation.h"

namespace convtime::ops {

/// An activation, and what some of them take.
struct ActivationCall {
  conv::Activation activation = conv::Activation::kIdentity;
  double negative_slope = 0;  ///< kLeakyRelu
};

/// By PyTorch's own op, through the dispatcher.
at::Tensor activate(const at::Tensor& x, const ActivationCall& call);

/// In place.
void activate_(at::Tensor& x, const ActivationCall& call);

/// Whether the gradient follows from the activation's output, and needs no input.
bool is_differentiable_by_output(const ActivationCall& call);

/// The gradient of what was activated, of an activation that is differentiable by its output.
at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& output,
                               const ActivationCall& call);

}  // namespace convtime::ops
