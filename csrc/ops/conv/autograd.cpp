#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "ops/autograd_node.h"
#include "ops/conv/backward_call.h"
#include "ops/conv/convolutions.h"
#include "ops/dispatch.h"

namespace convtime::ops {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::generated::ConvolutionBackward0;
using torch::autograd::generated::ConvolutionBackwardBackward0;
using torch::autograd::generated::details::toNonOptFwGrad;
using torch::autograd::generated::details::toNonOptPrimal;

// --- Derivatives through our own ops, with the same operations as PyTorch, and with the plans and
// the policy of our ops

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

/// Return the tangent of a convolution's output; one or more operands have tangents.
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

/// Return the tangents of the requested gradients, like forward_derivative().
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

/// Return the gradients of convolution_backward with respect to its tensors; `output_mask` selects
/// which of the three. `grads` are the gradients of its results, in order; at least one is defined.
variable_list double_backward(const Gradients& grads, const ConvBackwardCall& call) {
  const auto& [grad_grad_input, grad_grad_weight, grad_grad_bias] = grads;
  // Without input a convolution would add nothing.
  const bool has_input = call.input.sym_numel() != 0;
  const auto as_forward = [&](const at::Tensor& input, const at::Tensor& weight) {
    return convolve(input, dense_on_gpu(weight), call.stride, call.padding, call.dilation,
                    call.transposed, call.output_padding, call.groups, call.policy);
  };
  variable_list results(3);
  if (call.output_mask[0]) {
    if (has_input && grad_grad_input.defined()) {
      results[0] = as_forward(grad_grad_input, call.weight);
    }
    if (has_input && grad_grad_weight.defined()) {
      results[0] = sum(results[0], as_forward(call.input, grad_grad_weight));
    }
    if (grad_grad_bias.defined()) {
      results[0] = sum(results[0], expand_channels(grad_grad_bias, call.grad_output, /*dim=*/1));
    }
  }
  if (call.output_mask[1] && has_input && grad_grad_weight.defined()) {
    results[1] = grad_input_of_grad(grad_grad_weight, call);
  }
  if (call.output_mask[2] && has_input && grad_grad_input.defined()) {
    results[2] = grad_weight_of_grad(grad_grad_input, call);
  }
  return results;
}

// --- Autograd

/// A node of torch's that has the policy in addition, for FormulaNode. Its saved values are where
/// torch's Python attributes (_saved_input and so on) read them.
template <typename Torchs>
class SavedAsInTorch : public Torchs {
 public:
  explicit SavedAsInTorch(ConvSettings settings) : policy(std::move(settings.policy)) {
    this->stride = std::move(settings.stride);
    this->padding = std::move(settings.padding);
    this->dilation = std::move(settings.dilation);
    this->output_padding = std::move(settings.output_padding);
    this->groups = std::move(settings.groups);
    this->transposed = settings.transposed;
  }

  std::optional<std::string> policy;

 protected:
  template <typename Self, typename Function>
  static void for_each_tensor(Self& self, const Function& function) {
    if constexpr (requires { self.grad_output_; }) {
      function(self.grad_output_, /*is_output=*/false);
    }
    function(self.input_, /*is_output=*/false);
    function(self.weight_, /*is_output=*/false);
  }

  template <typename Self>
  static auto fields(Self& self) {
    return ConvSettings::fields(self);
  }
};

/// The derivative of convolution_backward with respect to grad_output, input and weight.
struct DoubleBackward {
  static constexpr const char* kName = "ConvolutionBackwardBackward0";
  using Settings = ConvSettings;

  static variable_list compute(const variable_list& grads, const Saved<ConvSettings>& saved) {
    return double_backward(
        {grads[0], grads[1], grads[2]},
        backward_call(saved.tensors[0], saved.tensors[1], saved.tensors[2], saved.settings,
                      {saved.wanted[0], saved.wanted[1], saved.wanted[2]}));
  }
};

using DoubleBackwardNode =
    FormulaNode<DoubleBackward, SavedAsInTorch<ConvolutionBackwardBackward0>>;

Gradients convolution_backward_autograd(const ConvBackwardCall& call) {
  const at::Tensor& grad_output = call.grad_output;
  const at::Tensor& input = call.input;
  const at::Tensor& weight = call.weight;
  Gradients results = below_autograd([&] { return dispatch(call); });
  if (torch::autograd::compute_requires_grad(grad_output, input, weight)) {
    const PolicyRequest policy =
        parse_policy("convolution_backward", call.policy,
                     {input_gradient_pass(call.transposed), conv::Pass::kWgrad});
    const auto node = make_node<DoubleBackwardNode>(settings_of(
        call, static_cast<std::size_t>(weight.dim() - 2), call.transposed, policy.for_gradients()));
    node->set_next_edges(torch::autograd::collect_next_edges(grad_output, input, weight));
    node->grad_output_ = SavedVariable(grad_output, /*is_output=*/false);
    node->input_ = SavedVariable(input, /*is_output=*/false);
    node->weight_ = SavedVariable(weight, /*is_output=*/false);
    torch::autograd::set_history(
        variable_list{std::get<0>(results), std::get<1>(results), std::get<2>(results)}, node);
  }
  if (has_tangents(grad_output, input, weight)) {
    const auto [grad_input, grad_weight, grad_bias] = forward_derivatives(call);
    set_tangent(std::get<0>(results), grad_input);
    set_tangent(std::get<1>(results), grad_weight);
    set_tangent(std::get<2>(results), grad_bias);
  }
  return results;
}

/// The derivative of a convolution with respect to input, weight and bias.
struct Backward {
  static constexpr const char* kName = "ConvolutionBackward0";
  using Settings = ConvSettings;

  static variable_list compute(const variable_list& grads, const Saved<ConvSettings>& saved) {
    const auto [grad_input, grad_weight, grad_bias] =
        gradients_of(grads[0], saved.tensors[0], saved.tensors[1], saved.settings,
                     {saved.wanted[0], saved.wanted[1], saved.wanted[2]});
    return {grad_input, grad_weight, grad_bias};
  }
};

using BackwardNode = FormulaNode<Backward, SavedAsInTorch<ConvolutionBackward0>>;

at::Tensor autograd(const ConvCall& call) {
  const c10::MaybeOwned<at::Tensor> borrowed_bias = at::borrow_from_optional_tensor(call.bias);
  const at::Tensor& bias = *borrowed_bias;
  at::Tensor output = below_autograd([&] { return dispatch(call); });
  if (torch::autograd::compute_requires_grad(call.input, call.weight, bias)) {
    const PolicyRequest policy =
        parse_policy(call.op.name, call.policy, {forward_pass(call.op.transposed)});
    const auto node = make_node<BackwardNode>(
        settings_of(call, call.op.spatial, call.op.transposed, policy.for_gradients()));
    node->set_next_edges(torch::autograd::collect_next_edges(call.input, call.weight, bias));
    node->input_ = SavedVariable(call.input, /*is_output=*/false);
    node->weight_ = SavedVariable(call.weight, /*is_output=*/false);
    node->bias_sym_sizes_opt.list = bias.sym_sizes().vec();  // [0] without a bias, as in torch
    torch::autograd::set_history(output, node);
  }
  if (has_tangents(call.input, call.weight, bias)) {
    set_tangent(output, forward_derivative(call, output));
  }
  return output;
}

}  // namespace

std::array<NodeType, 2> node_types() {
  return {{{typeid(BackwardNode), Backward::kName},
           {typeid(DoubleBackwardNode), DoubleBackward::kName}}};
}

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  implement<autograd>(library);
  library.impl("convolution_backward", kernel<convolution_backward_autograd>);
}

}  // namespace convtime::ops
