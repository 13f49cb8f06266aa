#include "ops/conv/derivatives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <torch/csrc/autograd/FunctionsManual.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace convtime::ops {
namespace {

using torch::autograd::generated::details::toNonOptFwGrad;
using torch::autograd::generated::details::toNonOptPrimal;

/// Return the sum of two terms; either may be undefined.
at::Tensor sum(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() && b.defined()) {
    return a + b;
  }
  return a.defined() ? a : b;
}

/// Compute a convolution without a bias.
at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
                    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                    c10::SymIntArrayRef output_padding, const c10::SymInt& groups,
                    std::optional<std::string_view> policy) {
  const auto place = static_cast<std::size_t>(weight.dim() - 3);
  return dispatch({transposed ? kConvTranspose[place] : kConv[place], input, weight,
                   /*bias=*/std::nullopt, stride, padding,
                   transposed ? output_padding : c10::SymIntArrayRef(), dilation, groups, policy});
}

/// Like PyTorch: cuDNN's plans depend on the layout of operands.
at::Tensor dense_on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda() ? tensor.contiguous() : tensor;
}

/// Truncate the spatial dimensions that are larger than in `like`.
at::Tensor narrow_to(at::Tensor tensor, const at::Tensor& like) {
  for (std::int64_t dim = 2; dim < tensor.dim(); ++dim) {
    if (tensor.sym_size(dim) > like.sym_size(dim)) {
      tensor = tensor.narrow_symint(dim, 0, like.sym_size(dim));
    }
  }
  return tensor;
}

/// Return one group of a convolution, in dimension 0.
at::Tensor group_of(const at::Tensor& tensor, std::int64_t groups, std::int64_t group) {
  const c10::SymInt size = tensor.sym_size(0) / groups;
  return tensor.narrow_symint(0, size * group, size);
}

/// Return whether PyTorch does not use cuDNN for the convolution that computes the weight's
/// gradient. PyTorch passes the transposed convolution's output padding on to it, where it has no
/// meaning. cuDNN accepts no convolution whose output padding reaches the stride; here the stride
/// is the dilation, because the two are exchanged.
bool is_output_padding_big(const ConvBackwardCall& call) {
  for (std::size_t i = 0; i < call.output_padding.size(); ++i) {
    if (call.output_padding[i] >= call.dilation[i]) {
      return true;
    }
  }
  return false;
}

/// Compute the weight's gradient from grad_grad_input, which takes the role of the input: a
/// convolution over the examples, with stride and dilation exchanged.
at::Tensor grad_weight_of_grad(const at::Tensor& grad_grad_input, const ConvBackwardCall& call) {
  const at::Tensor outputs = call.grad_output.transpose(0, 1);
  const at::Tensor inputs = grad_grad_input.transpose(0, 1);
  const bool leaves_cudnn = call.transposed && is_output_padding_big(call);
  const auto correlate = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor dense = dense_on_gpu(y);
    const at::Tensor& input = call.transposed ? dense : x;
    const at::Tensor& weight = call.transposed ? x : dense;
    if (leaves_cudnn) {
      return at::convolution_symint(input, weight, /*bias=*/std::nullopt, /*stride=*/call.dilation,
                                    call.padding, /*dilation=*/call.stride, /*transposed=*/false,
                                    call.output_padding, /*groups=*/1);
    }
    return convolve(input, weight, /*stride=*/call.dilation, call.padding, /*dilation=*/call.stride,
                    /*transposed=*/false, /*output_padding=*/{}, /*groups=*/1, call.policy);
  };
  const std::int64_t groups = call.groups.guard_int(__FILE__, __LINE__);
  if (groups == 1) {
    return narrow_to(correlate(inputs, outputs).transpose(0, 1), call.weight);
  }
  std::vector<at::Tensor> parts;
  for (std::int64_t group = 0; group < groups; ++group) {
    parts.push_back(correlate(group_of(inputs, groups, group), group_of(outputs, groups, group)));
  }
  return narrow_to(at::cat(parts, 1).transpose(0, 1), call.weight);
}

/// Compute the input's gradient from grad_grad_weight, which takes the role of the weight.
at::Tensor grad_input_of_grad(const at::Tensor& grad_grad_weight, const ConvBackwardCall& call) {
  const at::Tensor grad_output = dense_on_gpu(call.grad_output);
  std::vector<c10::SymInt> output_padding = call.output_padding.vec();
  if (!call.transposed) {
    // The end of the input that the convolution did not reach.
    for (std::size_t i = 0; i < output_padding.size(); ++i) {
      const auto dim = static_cast<std::int64_t>(i) + 2;
      output_padding[i] = call.input.sym_size(dim) -
                          ((grad_output.sym_size(dim) - 1) * call.stride[i] - 2 * call.padding[i] +
                           (call.weight.sym_size(dim) - 1) * call.dilation[i] + 1);
    }
  }
  const at::Tensor grad_input =
      convolve(grad_output, dense_on_gpu(grad_grad_weight), call.stride, call.padding,
               call.dilation, !call.transposed, output_padding, call.groups, call.policy);
  return call.transposed ? narrow_to(grad_input, call.input) : grad_input;
}

/// Expand one value per channel to the shape of a result whose channels are dimension `dim`.
at::Tensor expand_channels(const at::Tensor& numbers, const at::Tensor& like, std::int64_t dim) {
  std::vector<c10::SymInt> size(static_cast<std::size_t>(like.dim()), 1);
  size[static_cast<std::size_t>(dim)] = numbers.sym_size(0);
  return numbers.contiguous().view_symint(size).expand_symint(like.sym_sizes());
}

}  // namespace

at::Tensor forward_derivative(const ConvCall& call, const at::Tensor& output) {
  const auto run = [&](const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) {
    return dispatch({call.op, input, weight, bias, call.stride, call.padding, call.output_padding,
                     call.dilation, call.groups, call.policy});
  };
  const at::Tensor input = toNonOptFwGrad(call.input);
  const at::Tensor weight = toNonOptFwGrad(call.weight);
  const at::Tensor bias = toNonOptFwGrad(call.bias);
  at::Tensor result;
  if (input.defined()) {
    result = run(input, toNonOptPrimal(call.weight), std::nullopt);
  }
  if (weight.defined()) {
    const auto added = bias.defined() ? std::optional(bias) : std::nullopt;
    return sum(result, run(toNonOptPrimal(call.input), weight, added));
  }
  if (!bias.defined()) {
    return result;
  }
  const auto spatial = static_cast<std::int64_t>(call.op.spatial);
  return sum(result, expand_channels(bias, output, output.dim() - spatial - 1));
}

Gradients forward_derivatives(const ConvBackwardCall& call) {
  const at::Tensor grad_tangent = toNonOptFwGrad(call.grad_output);
  const at::Tensor input_tangent = toNonOptFwGrad(call.input);
  const at::Tensor weight_tangent = toNonOptFwGrad(call.weight);
  const at::Tensor grad_output = toNonOptPrimal(call.grad_output);
  const at::Tensor input = toNonOptPrimal(call.input);
  const at::Tensor weight = toNonOptPrimal(call.weight);
  at::Tensor grad_input;
  at::Tensor grad_weight;
  at::Tensor grad_bias;
  if (call.output_mask[0]) {
    if (weight_tangent.defined()) {
      grad_input = grad_input_of(call, grad_output, input, weight_tangent);
    }
    if (grad_tangent.defined()) {
      grad_input = sum(grad_input, grad_input_of(call, grad_tangent, input, weight));
    }
  }
  if (call.output_mask[1]) {
    if (input_tangent.defined()) {
      grad_weight = grad_weight_of(call, grad_output, input_tangent, weight);
    }
    if (grad_tangent.defined()) {
      grad_weight = sum(grad_weight, grad_weight_of(call, grad_tangent, input, weight));
    }
  }
  if (call.output_mask[2] && grad_tangent.defined()) {
    grad_bias = grad_bias_of(grad_tangent);
  }
  return {grad_input, grad_weight, grad_bias};
}

DoubleBackwardTensors double_backward(const Gradients& grads, const ConvBackwardCall& call) {
  const auto& [grad_grad_input, grad_grad_weight, grad_grad_bias] = grads;
  // Without input a convolution would add nothing.
  const bool has_input = call.input.sym_numel() != 0;
  const auto as_forward = [&](const at::Tensor& input, const at::Tensor& weight) {
    return convolve(input, dense_on_gpu(weight), call.stride, call.padding, call.dilation,
                    call.transposed, call.output_padding, call.groups, call.policy);
  };
  DoubleBackwardTensors result;
  if (call.output_mask[0]) {
    if (has_input && grad_grad_input.defined()) {
      result.grad_output = as_forward(grad_grad_input, call.weight);
    }
    if (has_input && grad_grad_weight.defined()) {
      result.grad_output = sum(result.grad_output, as_forward(call.input, grad_grad_weight));
    }
    if (grad_grad_bias.defined()) {
      result.grad_output =
          sum(result.grad_output, expand_channels(grad_grad_bias, call.grad_output, /*dim=*/1));
    }
  }
  if (call.output_mask[1] && has_input && grad_grad_weight.defined()) {
    result.input = grad_input_of_grad(grad_grad_weight, call);
  }
  if (call.output_mask[2] && has_input && grad_grad_input.defined()) {
    result.weight = grad_weight_of_grad(grad_grad_input, call);
  }
  return result;
}

}  // namespace convtime::ops
