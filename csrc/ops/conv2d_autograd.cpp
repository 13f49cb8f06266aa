#include <ATen/ops/_convolution_double_backward.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/conv2d.h"

namespace convtime::ops {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Nodes of our own and not torch::autograd::Function, whose saved values are looked up by name:
// what it adds to a call is more than PyTorch's whole own node.

/// Two numbers, whether one or two were given: PyTorch's backward wants them for each dimension.
std::vector<c10::SymInt> two(c10::SymIntArrayRef values) { return {values.front(), values.back()}; }

struct Numbers {
  std::vector<c10::SymInt> stride;
  std::vector<c10::SymInt> padding;
  std::vector<c10::SymInt> dilation;
  c10::SymInt groups;
};

/// torch owns nodes by a std::shared_ptr up to some version, later by a c10::intrusive_ptr.
template <typename T>
auto make_node() {
  if constexpr (std::is_same_v<decltype(torch::autograd::Edge::function), std::shared_ptr<Node>>) {
    // Not plain delete, which recurses as deep as the graph.
    return std::shared_ptr<T>(new T, [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>();
  }
}

template <typename... Tensors>
void refuse_forward_mode(const char* op, const Tensors&... tensors) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(torch::autograd::isFwGradDefined(tensors) || ...), op,
      ": forward-mode differentiation is not implemented; use backward, or torch's own conv2d");
}

/// The gradient of conv2d_backward.
struct Conv2dBackwardBackward final : Node {
  std::string name() const override { return "Conv2dBackwardBackward"; }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor saved_grad = grad_output.unpack();
    const at::Tensor saved_input = input.unpack();
    const at::Tensor saved_weight = weight.unpack();
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) {
      return variable_list(3);
    }
    const std::array<bool, 3> wanted = {task_should_compute_output(0),
                                        task_should_compute_output(1),
                                        task_should_compute_output(2)};
    const std::array<c10::SymInt, 2> no_output_padding = {0, 0};
    auto [grad_grad_output, grad_input, grad_weight] = at::_convolution_double_backward_symint(
        grads[0], grads[1], grads[2], saved_grad, saved_weight, saved_input, numbers.stride,
        numbers.padding, numbers.dilation, /*transposed=*/false, no_output_padding, numbers.groups,
        wanted);
    return {grad_grad_output, grad_input, grad_weight};
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    grad_output.reset_data();
    input.reset_data();
    weight.reset_data();
  }

  SavedVariable grad_output;
  SavedVariable input;
  SavedVariable weight;
  Numbers numbers;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> conv2d_backward_autograd(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    c10::SymInt groups, std::array<bool, 3> output_mask, std::optional<std::string_view> policy) {
  refuse_forward_mode("conv2d_backward", grad_output, input, weight);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv2d_backward_op().call(grad_output, input, weight, stride, padding, dilation, groups,
                                     output_mask, policy);
  }();
  if (torch::autograd::compute_requires_grad(grad_output, input, weight)) {
    const auto node = make_node<Conv2dBackwardBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(grad_output, input, weight));
    node->grad_output = SavedVariable(grad_output, /*is_output=*/false);
    node->input = SavedVariable(input, /*is_output=*/false);
    node->weight = SavedVariable(weight, /*is_output=*/false);
    node->numbers = {two(stride), two(padding), two(dilation), groups};
    torch::autograd::set_history(
        variable_list{std::get<0>(results), std::get<1>(results), std::get<2>(results)}, node);
  }
  return results;
}

/// The gradient of conv2d.
struct Conv2dBackward final : Node {
  std::string name() const override { return "Conv2dBackward"; }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor saved_input = input.unpack();
    const at::Tensor saved_weight = weight.unpack();
    if (!grads[0].defined()) {
      return variable_list(3);
    }
    const bool batched = saved_input.dim() == 4;
    const std::array<bool, 3> wanted = {task_should_compute_output(0),
                                        task_should_compute_output(1),
                                        has_bias && task_should_compute_output(2)};
    auto [grad_input, grad_weight, grad_bias] = conv2d_backward_op().call(
        batched ? grads[0] : grads[0].unsqueeze(0),
        batched ? saved_input : saved_input.unsqueeze(0), saved_weight, numbers.stride,
        numbers.padding, numbers.dilation, numbers.groups, wanted, policy);
    if (!batched && grad_input.defined()) {
      grad_input = grad_input.squeeze(0);
    }
    return {grad_input, grad_weight, grad_bias};
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

  SavedVariable input;
  SavedVariable weight;
  bool has_bias = false;
  Numbers numbers;
  std::optional<std::string> policy;
};

at::Tensor conv2d_autograd(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups, std::optional<std::string_view> policy) {
  const c10::MaybeOwned<at::Tensor> borrowed_bias = at::borrow_from_optional_tensor(bias);
  const at::Tensor& defined_bias = *borrowed_bias;
  refuse_forward_mode("conv2d", input, weight, defined_bias);
  at::Tensor output = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv2d_op().call(input, weight, bias, stride, padding, dilation, groups, policy);
  }();
  if (torch::autograd::compute_requires_grad(input, weight, defined_bias)) {
    const auto node = make_node<Conv2dBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, defined_bias));
    node->input = SavedVariable(input, /*is_output=*/false);
    node->weight = SavedVariable(weight, /*is_output=*/false);
    node->has_bias = defined_bias.defined();
    node->numbers = {two(stride), two(padding), two(dilation), groups};
    node->policy = parse_policy("conv2d", policy, {conv::Pass::kFprop}).for_gradients();
    torch::autograd::set_history(output, node);
  }
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("conv2d", conv2d_autograd);
  library.impl("conv2d_backward", conv2d_backward_autograd);
}

}  // namespace convtime::ops
