#include <torch/csrc/autograd/functions/utils.h>
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
#include "ops/conv/conv_settings.h"
#include "ops/conv/convolutions.h"
#include "ops/conv/derivatives.h"
#include "ops/conv/node_types.h"

namespace convtime::ops {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::generated::ConvolutionBackward0;
using torch::autograd::generated::ConvolutionBackwardBackward0;

template <typename... Tensors>
bool has_tangents(const Tensors&... tensors) {
  return (torch::autograd::isFwGradDefined(tensors) || ...);
}

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
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) {
      return variable_list(3);
    }
    const ConvSettings& settings = saved.settings;
    const auto [grad_output, input, weight] = double_backward(
        {grads[0], grads[1], grads[2]}, {saved.tensors[0],
                                         saved.tensors[1],
                                         saved.tensors[2],
                                         settings.stride,
                                         settings.padding,
                                         settings.dilation,
                                         settings.transposed,
                                         settings.output_padding,
                                         settings.groups,
                                         {saved.wanted[0], saved.wanted[1], saved.wanted[2]},
                                         settings.policy});
    return {grad_output, input, weight};
  }
};

using DoubleBackwardNode =
    FormulaNode<DoubleBackward, SavedAsInTorch<ConvolutionBackwardBackward0>>;

Gradients convolution_backward_autograd(const at::Tensor& grad_output, const at::Tensor& input,
                                        const at::Tensor& weight, c10::SymIntArrayRef stride,
                                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                        bool transposed, c10::SymIntArrayRef output_padding,
                                        c10::SymInt groups, std::array<bool, 3> output_mask,
                                        std::optional<std::string_view> policy) {
  const ConvBackwardCall call{grad_output, input,          weight, stride,      padding, dilation,
                              transposed,  output_padding, groups, output_mask, policy};
  Gradients results = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch(call);
  }();
  if (torch::autograd::compute_requires_grad(grad_output, input, weight)) {
    const auto spatial = static_cast<std::size_t>(weight.dim() - 2);
    const auto node = make_node<DoubleBackwardNode>(
        ConvSettings{.stride = per_dimension(stride, spatial),
                     .padding = per_dimension(padding, spatial),
                     .dilation = per_dimension(dilation, spatial),
                     .output_padding = per_dimension(output_padding, spatial),
                     .groups = groups,
                     .transposed = transposed,
                     .policy = parse_policy("convolution_backward", policy,
                                            {input_gradient_pass(transposed), conv::Pass::kWgrad})
                                   .for_gradients()});
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
    if (!grads[0].defined()) {
      return variable_list(3);
    }
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
  at::Tensor output = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch(call);
  }();
  if (torch::autograd::compute_requires_grad(call.input, call.weight, bias)) {
    const PolicyRequest policy =
        parse_policy(call.op.name, call.policy, {forward_pass(call.op.transposed)});
    const auto node = make_node<BackwardNode>(
        ConvSettings{.stride = per_dimension(call.stride, call.op.spatial),
                     .padding = per_dimension(call.padding, call.op.spatial),
                     .dilation = per_dimension(call.dilation, call.op.spatial),
                     .output_padding = per_dimension(call.output_padding, call.op.spatial),
                     .groups = call.groups,
                     .transposed = call.op.transposed,
                     .policy = policy.for_gradients()});
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
  library.impl("convolution_backward", convolution_backward_autograd);
}

}  // namespace convtime::ops
