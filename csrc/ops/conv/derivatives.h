#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/backward_call.h"
#include "ops/conv/convolutions.h"

namespace convtime::ops {

// By what PyTorch computes them by, through our own ops: with their plans, under their policy.

/// The tangent of a convolution's output, of operands of which one or more have tangents.
at::Tensor forward_derivative(const ConvCall& call, const at::Tensor& output);

/// As forward_derivative, those of the gradients that the call asks for.
Gradients forward_derivatives(const ConvBackwardCall& call);

/// What double_backward is computed from, and gives.
struct DoubleBackwardTensors {
  at::Tensor grad_output;
  at::Tensor input;
  at::Tensor weight;
};

/// The gradients of convolution_backward with respect to its tensors; `output_mask` tells which of
/// the three are wanted. `grads` are those of its results, in their order; one or more are defined.
DoubleBackwardTensors double_backward(const Gradients& grads, const ConvBackwardCall& call);

}  // namespace convtime::ops
