#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "ops/autograd_node.h"
#include "ops/conv/backward_call.h"
#include "ops/conv/epilogue.h"

namespace convtime::ops {
namespace {

using torch::autograd::variable_list;

/// The derivative of convolution_epilogue with respect to input, weight, bias and other.
struct EpilogueBackward {
  static constexpr const char* kName = "ConvolutionEpilogueBackward";

  struct Settings {
    ConvSettings conv;
    std::string activation;
    double alpha = 1;
    double negative_slope = 0;

    template <typename Self>
    static auto fields(Self& self) {
      return std::tuple_cat(ConvSettings::fields(self.conv),
                            std::tie(self.activation, self.alpha, self.negative_slope));
    }
  };

  static variable_list compute(const variable_list& grads, const Saved<Settings>& saved) {
    const Settings& settings = saved.settings;
    const ActivationCall activation = {find_enum<conv::Activation>(settings.activation).value(),
                                       settings.negative_slope};
    const bool activates = activation.activation != conv::Activation::kIdentity;
    const at::Tensor grad =
        activates ? activation_backward(grads[0], saved.tensors[2], activation) : grads[0];
    variable_list results(4);
    if (saved.wanted[0] || saved.wanted[1] || saved.wanted[2]) {
      std::tie(results[0], results[1], results[2]) =
          gradients_of(grad, saved.tensors[0], saved.tensors[1], settings.conv,
                       {saved.wanted[0], saved.wanted[1], saved.wanted[2]});
    }
    if (saved.wanted[3]) {
      results[3] = settings.alpha == 1 ? grad : grad * settings.alpha;
    }
    return results;
  }
};

/// Compute each step with a separate op, which torch can differentiate in any mode.
at::Tensor compute_separately(const EpilogueCall& call) {
  const ConvOp& conv = kConv[op_of(call).spatial - 1];
  at::Tensor y = dispatch({conv, call.input, call.weight, call.bias, call.stride, call.padding,
                           /*output_padding=*/{}, call.dilation, call.groups,
                           policy_of(call).for_gradients()});
  if (is_defined(call.other)) {
    y = at::add(y, *call.other, call.alpha);
  }
  return activate(y, activation_of(call));
}

at::Tensor autograd_epilogue(const EpilogueCall& call) {
  const auto borrowed_bias = at::borrow_from_optional_tensor(call.bias);
  const auto borrowed_other = at::borrow_from_optional_tensor(call.other);
  const at::Tensor& bias = *borrowed_bias;
  const at::Tensor& other = *borrowed_other;
  if (has_tangents(call.input, call.weight, bias, other)) {
    return compute_separately(call);
  }
  const bool wants_gradient =
      torch::autograd::compute_requires_grad(call.input, call.weight, bias, other);
  const ActivationCall activation = activation_of(call);
  if (wants_gradient && !is_differentiable_by_output(activation)) {
    // The activation's input must be saved, so it must be written: only the sums are fused.
    const at::Tensor sum =
        dispatch({call.input, call.weight, call.bias, call.other, call.stride, call.padding,
                  call.dilation, call.groups, conv::to_string(conv::Activation::kIdentity),
                  call.alpha, /*negative_slope=*/0, call.policy});
    return activate(sum, activation);
  }
  at::Tensor output = below_autograd([&] { return dispatch(call); });
  if (!wants_gradient) {
    return output;
  }
  const auto node = make_node<FormulaNode<EpilogueBackward>>(EpilogueBackward::Settings{
      .conv = settings_of(call, op_of(call).spatial,
                          /*transposed=*/false, policy_of(call).for_gradients()),
      .activation = std::string(call.activation),
      .alpha = call.alpha,
      .negative_slope = call.negative_slope});
  node->set_next_edges(torch::autograd::collect_next_edges(call.input, call.weight, bias, other));
  node->save_inputs(call.input, call.weight);
  torch::autograd::set_history(output, node);
  if (activation.activation != conv::Activation::kIdentity) {
    node->save_output(output);
  }
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("convolution_epilogue", kernel<autograd_epilogue>);
}

}  // namespace convtime::ops
