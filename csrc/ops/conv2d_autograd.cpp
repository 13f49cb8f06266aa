#include <ATen/ops/convolution_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <vector>

#include "ops/conv2d.h"

namespace convtime::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor dispatch_below_autograd(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias,
                                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                   c10::SymIntArrayRef dilation, const c10::SymInt& groups) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return conv2d_op().call(input, weight, bias, stride, padding, dilation, groups);
}

/// Whether a tensor takes part in differentiation, backward or forward.
bool is_tracked(const at::Tensor& tensor) {
  return tensor.defined() && ((at::GradMode::is_enabled() && tensor.requires_grad()) ||
                              tensor._fw_grad(/*level=*/0).defined());
}

/// Two numbers, whether one or two were given: convolution_backward wants them for each dimension.
std::vector<c10::SymInt> two(c10::SymIntArrayRef values) {
  return {values.at(0), values.size() == 1 ? values[0] : values.at(1)};
}

class Conv2dFunction : public torch::autograd::Function<Conv2dFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                            c10::SymIntArrayRef dilation, const c10::SymInt& groups) {
    const at::Tensor output =
        dispatch_below_autograd(input, weight, bias, stride, padding, dilation, groups);
    context->save_for_backward({input, weight});
    context->saved_data["stride"] = two(stride);
    context->saved_data["padding"] = two(padding);
    context->saved_data["dilation"] = two(dilation);
    context->saved_data["groups"] = groups;
    context->saved_data["has_bias"] = bias.has_value() && bias->defined();
    return output;
  }

  /// The gradients are PyTorch's own aten::convolution_backward; it is differentiable again.
  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const bool batched = saved[0].dim() == 4;
    const at::Tensor input = batched ? saved[0] : saved[0].unsqueeze(0);
    const at::Tensor grad_output = batched ? grad_outputs[0] : grad_outputs[0].unsqueeze(0);

    const std::array<bool, 3> wanted = {
        context->needs_input_grad(0), context->needs_input_grad(1),
        context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)};
    const std::array<c10::SymInt, 1> bias_sizes = {weight.sym_size(0)};
    const std::array<c10::SymInt, 2> no_output_padding = {0, 0};
    auto [grad_input, grad_weight, grad_bias] = at::convolution_backward_symint(
        grad_output, input, weight, c10::SymIntArrayRef(bias_sizes),
        context->saved_data["stride"].toSymIntVector(),
        context->saved_data["padding"].toSymIntVector(),
        context->saved_data["dilation"].toSymIntVector(), /*transposed=*/false, no_output_padding,
        context->saved_data["groups"].toSymInt(), wanted);
    if (!batched && grad_input.defined()) {
      grad_input = grad_input.squeeze(0);
    }
    return {grad_input, grad_weight, grad_bias, {}, {}, {}, {}};
  }
};

at::Tensor conv2d_autograd(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups) {
  if (!is_tracked(input) && !is_tracked(weight) && !(bias.has_value() && is_tracked(*bias))) {
    return dispatch_below_autograd(input, weight, bias, stride, padding, dilation, groups);
  }
  return Conv2dFunction::apply(input, weight, bias, stride, padding, dilation, groups);
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, Autograd, library) { library.impl("conv2d", conv2d_autograd); }

}  // namespace convtime::ops
