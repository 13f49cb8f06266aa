#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/autograd_node.h"
#include "ops/dispatch.h"
#include "ops/kernels/mlp_layers.h"

namespace convtime::ops {
namespace mlp_autograd {
namespace {

using torch::autograd::variable_list;

// --- The ops, called through the dispatcher

at::Tensor call_mlp(const at::Tensor& input, const at::Tensor& weights, std::int64_t outputs,
                    std::string_view activation) {
  static const auto handle =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t, std::string_view)>(
          "mlp");
  return handle.call(input, weights, outputs, activation);
}

std::tuple<at::Tensor, at::Tensor> call_mlp_backward(const at::Tensor& grad_output,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weights,
                                                     std::string_view activation) {
  static const auto handle = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, std::string_view)>("mlp_backward");
  return handle.call(grad_output, input, weights, activation);
}

// --- Derivatives that no kernel computes, in ATen's ops, which have derivatives of any order

/// The inputs of all layers and their tangents; the last tangent is the output's.
struct Duals {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> tangents;
};

Duals forward_duals(const Layers& net, const at::Tensor& input, const at::Tensor& weights,
                    const at::Tensor& input_tangent, const at::Tensor& weights_tangent) {
  Duals duals{{input}, {input_tangent}};
  for (std::int64_t layer = 0; layer < net.layers; ++layer) {
    const at::Tensor tangent = duals.tangents.back().mm(net.matrix(weights, layer).t()) +
                               net.apply(weights_tangent, layer, duals.inputs.back());
    if (layer == net.layers - 1) {
      duals.tangents.push_back(tangent);
      break;
    }
    duals.inputs.push_back(net.activate(net.apply(weights, layer, duals.inputs.back())));
    duals.tangents.push_back(net.times_slope(tangent, duals.inputs.back()));
  }
  return duals;
}

/// The tangents of mlp_backward's results.
struct GradientTangents {
  at::Tensor input;
  at::Tensor weights;
};

GradientTangents backward_tangents(const Layers& net, const Duals& duals, const at::Tensor& weights,
                                   const at::Tensor& weights_tangent, at::Tensor gradient,
                                   at::Tensor gradient_tangent) {
  std::vector<at::Tensor> of_weights(static_cast<std::size_t>(net.layers));
  for (std::int64_t layer = net.layers - 1;; --layer) {
    const auto i = static_cast<std::size_t>(layer);
    const at::Tensor& input = duals.inputs[i];
    const at::Tensor& tangent = duals.tangents[i];
    of_weights[i] = net.pad(layer, gradient_tangent.t().mm(input) + gradient.t().mm(tangent),
                            gradient_tangent.sum(0));
    gradient_tangent = gradient_tangent.mm(net.matrix(weights, layer)) +
                       gradient.mm(net.matrix(weights_tangent, layer));
    if (layer == 0) {
      return {gradient_tangent, at::stack(of_weights)};
    }
    gradient = gradient.mm(net.matrix(weights, layer));
    gradient_tangent = net.times_slope(gradient_tangent, input);
    if (net.tanh) {
      gradient_tangent = gradient_tangent - 2 * gradient * input * tangent;
    }
    gradient = net.times_slope(gradient, input);
  }
}

// --- Autograd

struct MlpSettings {
  std::string activation;

  template <typename Self>
  static auto fields(Self& self) {
    return std::tie(self.activation);
  }
};

struct MlpBackward {
  static constexpr const char* kName = "MlpBackward";
  using Settings = MlpSettings;

  static variable_list compute(const variable_list& grads, const Saved<MlpSettings>& saved) {
    const auto [of_input, of_weights] =
        call_mlp_backward(grads[0], saved.tensors[0], saved.tensors[1], saved.settings.activation);
    return {of_input, of_weights};
  }
};

struct MlpDoubleBackward {
  static constexpr const char* kName = "MlpBackwardBackward";
  using Settings = MlpSettings;

  /// With the incoming gradients as tangents of input and weights, the gradient of grad_output is
  /// the tangent of the output, and the other gradients are the tangents of mlp_backward's results,
  /// because the matrix of second derivatives is symmetric.
  static variable_list compute(const variable_list& grads, const Saved<MlpSettings>& saved) {
    const auto guard = without_autocast();
    const at::Tensor& grad_output = saved.tensors[0];
    const at::Tensor& input = saved.tensors[1];
    const at::Tensor& weights = saved.tensors[2];
    const Layers net(input, weights, grad_output.sym_size(1), saved.settings.activation);
    const at::Tensor of_input = grads[0].defined() ? grads[0] : at::zeros_like(input);
    const at::Tensor of_weights = grads[1].defined() ? grads[1] : at::zeros_like(weights);
    const Duals duals = forward_duals(net, input, weights, of_input, of_weights);
    const GradientTangents tangents = backward_tangents(net, duals, weights, of_weights,
                                                        grad_output, at::zeros_like(grad_output));
    return {duals.tangents.back(), tangents.input, tangents.weights};
  }
};

at::Tensor tangent_of(const at::Tensor& tensor) {
  return has_tangents(tensor) ? tensor._fw_grad(/*level=*/0) : at::zeros_like(tensor);
}

at::Tensor primal_of(const at::Tensor& tensor) {
  return has_tangents(tensor) ? tensor._fw_primal(/*level=*/0) : tensor;
}

template <typename Formula, typename... Tensors>
void set_history(const variable_list& results, std::string_view activation,
                 const Tensors&... from) {
  const auto node = make_node<FormulaNode<Formula>>(MlpSettings{std::string(activation)});
  node->save_inputs(from...);
  node->set_next_edges(torch::autograd::collect_next_edges(from...));
  torch::autograd::set_history(results, node);
}

at::Tensor forward(const at::Tensor& input, const at::Tensor& weights, std::int64_t outputs,
                   std::string_view activation) {
  const at::Tensor output =
      below_autograd([&] { return call_mlp(input, weights, outputs, activation); });
  if (torch::autograd::compute_requires_grad(input, weights)) {
    set_history<MlpBackward>({output}, activation, input, weights);
  }
  if (has_tangents(input, weights)) {
    const Layers net(input, weights, outputs, activation);
    const Duals duals = forward_duals(net, primal_of(input), primal_of(weights), tangent_of(input),
                                      tangent_of(weights));
    set_tangent(output, duals.tangents.back());
  }
  return output;
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad_output, const at::Tensor& input,
                                            const at::Tensor& weights,
                                            std::string_view activation) {
  const auto results =
      below_autograd([&] { return call_mlp_backward(grad_output, input, weights, activation); });
  const auto& [of_input, of_weights] = results;
  if (torch::autograd::compute_requires_grad(grad_output, input, weights)) {
    set_history<MlpDoubleBackward>({of_input, of_weights}, activation, grad_output, input, weights);
  }
  if (has_tangents(grad_output, input, weights)) {
    const auto guard = without_autocast();
    const Layers net(input, weights, grad_output.sym_size(1), activation);
    const at::Tensor weights_tangent = tangent_of(weights);
    const Duals duals = forward_duals(net, primal_of(input), primal_of(weights), tangent_of(input),
                                      weights_tangent);
    const GradientTangents tangents =
        backward_tangents(net, duals, primal_of(weights), weights_tangent, primal_of(grad_output),
                          tangent_of(grad_output));
    set_tangent(of_input, tangents.input);
    set_tangent(of_weights, tangents.weights);
  }
  return results;
}

// --- Autocast

/// Like torch.nn.functional.linear.
template <c10::DeviceType device>
at::Tensor cast(const at::Tensor& input, const at::Tensor& weights, std::int64_t outputs,
                std::string_view activation) {
  const auto guard = without_autocast();
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  return call_mlp(at::autocast::cached_cast(type, input, device),
                  at::autocast::cached_cast(type, weights, device), outputs, activation);
}

}  // namespace
}  // namespace mlp_autograd

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("mlp", mlp_autograd::forward);
  library.impl("mlp_backward", mlp_autograd::backward);
}

TORCH_LIBRARY_IMPL(convtime, AutocastCPU, library) {
  library.impl("mlp", mlp_autograd::cast<at::kCPU>);
}

TORCH_LIBRARY_IMPL(convtime, AutocastCUDA, library) {
  library.impl("mlp", mlp_autograd::cast<at::kCUDA>);
}

}  // namespace convtime::ops
