#pragma once

#include <ATen/core/Tensor.h>

#include "conv/engine.h"

namespace convtime::ops {

/// An activation and its parameter.
struct ActivationCall {
  conv::Activation activation = conv::Activation::kIdentity;
  double negative_slope = 0;  ///< kLeakyRelu
};

/// Apply PyTorch's own op through the dispatcher.
at::Tensor activate(const at::Tensor& x, const ActivationCall& call);

/// The same in place.
void activate_(at::Tensor& x, const ActivationCall& call);

/// Return whether the gradient can be computed from the activation's output alone.
bool is_differentiable_by_output(const ActivationCall& call);

/// Return the gradient of the activation's input; the activation must be differentiable by its
/// output.
at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& output,
                               const ActivationCall& call);

}  // namespace convtime::ops
