#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/autograd_node.h"
#include "ops/conv/backward_call.h"
#include "ops/conv/convolutions.h"
#include "ops/conv/derivatives.h"

namespace convtime::ops {
namespace {

using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::IValuePacker;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// Nodes of our own and not torch::autograd::Function, whose saved values are looked up by name:
// what it adds to a call is more than PyTorch's whole own node.

/// What a gradient is computed from, beside the gradients that come in.
struct Saved {
  variable_list tensors;
  std::vector<c10::SymInt> stride;
  std::vector<c10::SymInt> padding;
  std::vector<c10::SymInt> dilation;
  std::vector<c10::SymInt> output_padding;
  c10::SymInt groups;
  bool transposed;
  std::optional<std::string> policy;
  std::vector<bool> wanted;  ///< which of the node's three gradients
};

/// One number for each spatial dimension: PyTorch's backward wants them so. None is zeros.
std::vector<c10::SymInt> expand(c10::SymIntArrayRef values, std::size_t spatial) {
  if (values.size() == spatial) {
    return values.vec();
  }
  return std::vector<c10::SymInt>(spatial, values.empty() ? c10::SymInt(0) : values.front());
}

template <typename... Tensors>
bool has_tangents(const Tensors&... tensors) {
  return (torch::autograd::isFwGradDefined(tensors) || ...);
}

template <typename... Packed>
std::vector<at::TypePtr> packed_types() {
  return {IValuePacker<Packed>::packed_type()...};
}

/// A node of the autograd graph; the formula computes its gradients.
template <typename Formula>
class ConvNode final : public Node {
 public:
  template <typename... Tensors>
  void save(Saved settings, const Tensors&... tensors) {
    tensors_.reserve(sizeof...(tensors));
    (tensors_.emplace_back(tensors, /*is_output=*/false), ...);
    saved_ = std::move(settings);
  }

  std::string name() const override { return Formula::kName; }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    return Formula::compute(grads, unpack());
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& tensor : tensors_) {
      tensor.reset_data();
    }
  }

  // The rest is for compiled autograd: how to trace the formula, as torch's own nodes do it.

  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(tensors_, /*is_output=*/false);
    args.collect(saved_.stride);
    args.collect(saved_.padding);
    args.collect(saved_.dilation);
    args.collect(saved_.output_padding);
    args.collect(saved_.groups);
    args.collect(saved_.transposed);
    args.collect(saved_.policy);
  }

  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& swap) override {
    swap.before(tensors_);
    swap.before(saved_.stride);
    swap.before(saved_.padding);
    swap.before(saved_.dilation);
    swap.before(saved_.output_padding);
    swap.before(saved_.groups);
    const Saved saved = unpack();
    PackedArgs packed;
    packed.pack(saved.tensors);
    packed.pack(saved.stride);
    packed.pack(saved.padding);
    packed.pack(saved.dilation);
    packed.pack(saved.output_padding);
    packed.pack(saved.groups);
    packed.pack(saved.transposed);
    packed.pack(saved.policy);
    packed.pack(saved.wanted);
    const auto& interface = torch::dynamo::autograd::getPyCompilerInterface();
    // Once for the process: a name that is taken is refused.
    static const std::string function = interface->bind_function(
        swap.get_py_compiler(), name(), compute_packed,
        packed_types<variable_list, std::vector<c10::SymInt>, std::vector<c10::SymInt>,
                     std::vector<c10::SymInt>, std::vector<c10::SymInt>, c10::SymInt, bool,
                     std::optional<std::string>, std::vector<bool>>());
    variable_list results = interface->call_function(
        swap.get_py_compiler(), "apply_functional", function, grads, std::move(packed).vec(),
        IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(
            torch::dynamo::autograd::get_input_metadata(next_edges())));
    swap.after(tensors_);
    swap.after(saved_.stride);
    swap.after(saved_.padding);
    swap.after(saved_.dilation);
    swap.after(saved_.output_padding);
    swap.after(saved_.groups);
    return results;
  }

 private:
  Saved unpack() const {
    Saved saved = saved_;
    for (const SavedVariable& tensor : tensors_) {
      saved.tensors.push_back(tensor.unpack());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      saved.wanted.push_back(task_should_compute_output(i));
    }
    return saved;
  }

  static variable_list compute_packed(const variable_list& grads,
                                      const std::vector<at::IValue>& args) {
    PackedArgs packed(args);
    Saved saved;
    saved.tensors = packed.unpack<variable_list>();
    saved.stride = packed.unpack<std::vector<c10::SymInt>>();
    saved.padding = packed.unpack<std::vector<c10::SymInt>>();
    saved.dilation = packed.unpack<std::vector<c10::SymInt>>();
    saved.output_padding = packed.unpack<std::vector<c10::SymInt>>();
    saved.groups = packed.unpack<c10::SymInt>();
    saved.transposed = packed.unpack<bool>();
    saved.policy = packed.unpack<std::optional<std::string>>();
    saved.wanted = packed.unpack<std::vector<bool>>();
    return Formula::compute(grads, saved);
  }

  std::vector<SavedVariable> tensors_;
  Saved saved_;  // less what unpack() adds
};

/// Of convolution_backward, with respect to grad_output, input and weight.
struct DoubleBackward {
  static constexpr const char* kName = "ConvolutionBackwardBackward";

  static variable_list compute(const variable_list& grads, const Saved& saved) {
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) {
      return variable_list(3);
    }
    const auto [grad_output, input, weight] = double_backward(
        {grads[0], grads[1], grads[2]}, {saved.tensors[0],
                                         saved.tensors[1],
                                         saved.tensors[2],
                                         saved.stride,
                                         saved.padding,
                                         saved.dilation,
                                         saved.transposed,
                                         saved.output_padding,
                                         saved.groups,
                                         {saved.wanted[0], saved.wanted[1], saved.wanted[2]},
                                         saved.policy});
    return {grad_output, input, weight};
  }
};

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
    const auto node = make_node<ConvNode<DoubleBackward>>();
    node->set_next_edges(torch::autograd::collect_next_edges(grad_output, input, weight));
    const auto spatial = static_cast<std::size_t>(weight.dim() - 2);
    node->save({.tensors = {},
                .stride = expand(stride, spatial),
                .padding = expand(padding, spatial),
                .dilation = expand(dilation, spatial),
                .output_padding = expand(output_padding, spatial),
                .groups = groups,
                .transposed = transposed,
                .policy = parse_policy("convolution_backward", policy,
                                       {input_gradient_pass(transposed), conv::Pass::kWgrad})
                              .for_gradients(),
                .wanted = {}},
               grad_output, input, weight);
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

/// Of a convolution, with respect to input, weight and bias.
struct Backward {
  static constexpr const char* kName = "ConvolutionBackward";

  static variable_list compute(const variable_list& grads, const Saved& saved) {
    if (!grads[0].defined()) {
      return variable_list(3);
    }
    const at::Tensor& input = saved.tensors[0];
    const at::Tensor& weight = saved.tensors[1];
    const bool batched = input.dim() == weight.dim();
    auto [grad_input, grad_weight, grad_bias] = convolution_backward_op().call(
        batched ? grads[0] : grads[0].unsqueeze(0), batched ? input : input.unsqueeze(0), weight,
        saved.stride, saved.padding, saved.dilation, saved.transposed, saved.output_padding,
        saved.groups, {saved.wanted[0], saved.wanted[1], saved.wanted[2]}, saved.policy);
    if (!batched && grad_input.defined()) {
      grad_input = grad_input.squeeze(0);
    }
    return {grad_input, grad_weight, grad_bias};
  }
};

at::Tensor autograd(const ConvCall& call) {
  const c10::MaybeOwned<at::Tensor> borrowed_bias = at::borrow_from_optional_tensor(call.bias);
  const at::Tensor& bias = *borrowed_bias;
  at::Tensor output = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch(call);
  }();
  if (torch::autograd::compute_requires_grad(call.input, call.weight, bias)) {
    const auto node = make_node<ConvNode<Backward>>();
    node->set_next_edges(torch::autograd::collect_next_edges(call.input, call.weight, bias));
    const PolicyRequest policy =
        parse_policy(call.op.name, call.policy, {forward_pass(call.op.transposed)});
    node->save({.tensors = {},
                .stride = expand(call.stride, call.op.spatial),
                .padding = expand(call.padding, call.op.spatial),
                .dilation = expand(call.dilation, call.op.spatial),
                .output_padding = expand(call.output_padding, call.op.spatial),
                .groups = call.groups,
                .transposed = call.op.transposed,
                .policy = policy.for_gradients(),
                .wanted = {}},
               call.input, call.weight);
    torch::autograd::set_history(output, node);
  }
  if (has_tangents(call.input, call.weight, bias)) {
    set_tangent(output, forward_derivative(call, output));
  }
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  implement<autograd>(library);
  library.impl("convolution_backward", convolution_backward_autograd);
}

}  // namespace convtime::ops
