#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/backward_call.h"
#include "ops/conv/convolutions.h"

namespace convtime::ops {

// Derivatives through our own ops, with the same operations as PyTorch, and with the plans and the
// policy of our ops.

/// Return the tangent of a convolution's output; one or more operands have tangents.
at::Tensor forward_derivative(const ConvCall& call, const at::Tensor& output);

/// Return the tangents of the requested gradients, like forward_derivative().
Gradients forward_derivatives(const ConvBackwardCall& call);

/// The inputs of double_backward(), and its results.
struct DoubleBackwardTensors {
  at::Tensor grad_output;
  at::Tensor input;
  at::Tensor weight;
};

/// Return the gradients of convolution_backward with respect to its tensors; `output_mask` selects
/// which of the three. `grads` are the gradients of its results, in order; at least one is defined.
DoubleBackwardTensors double_backward(const Gradients& grads, const ConvBackwardCall& call);

}  // namespace convtime::ops
