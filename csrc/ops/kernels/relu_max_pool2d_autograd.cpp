#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "ops/autograd_node.h"
#include "ops/kernels/relu_max_pool2d.h"

namespace convtime::ops {
namespace {

using torch::autograd::isFwGradDefined;
using torch::autograd::variable_list;

/// The values needed to compute a gradient, in addition to the winners.
struct PoolSettings {
  std::vector<c10::SymInt> input_size;
  std::vector<std::int64_t> kernel_size;
  std::vector<std::int64_t> stride;
  std::vector<std::int64_t> padding;
  std::vector<std::int64_t> dilation;
  bool ceil_mode = false;

  PoolWindow window() const { return {kernel_size, stride, padding, dilation, ceil_mode}; }

  template <typename Self>
  static auto fields(Self& self) {
    return std::tie(self.input_size, self.kernel_size, self.stride, self.padding, self.dilation,
                    self.ceil_mode);
  }
};

/// Gather the elements that the outputs won from a tensor of the input's shape; zero for outputs
/// without a gradient. This is the derivative in forward mode, and the derivative of the backward
/// pass.
at::Tensor take_won(const at::Tensor& of_input, const at::Tensor& winners,
                    const PoolWindow& window) {
  const at::Tensor indices = relu_max_pool2d_indices(winners, of_input.sym_sizes(), window);
  const bool bytes = winners.scalar_type() == at::kByte;
  const at::Tensor alive =
      winners.to(at::kLong).lt(bytes ? std::int64_t{1} << 7 : std::int64_t{1} << 31);
  const at::Tensor taken =
      at::gather(of_input.flatten(-2), -1, at::where(alive, indices, 0).flatten(-2))
          .view_symint(winners.sym_sizes());
  return at::where(alive, taken, 0);
}

struct PoolBackward {
  static constexpr const char* kName = "ReluMaxPool2DBackward";
  using Settings = PoolSettings;

  static variable_list compute(const variable_list& grads, const Saved<PoolSettings>& saved) {
    if (!grads[0].defined()) {
      return variable_list(1);
    }
    return {relu_max_pool2d_backward(grads[0], saved.tensors[0], saved.settings.input_size,
                                     saved.settings.window())};
  }
};

struct PoolDoubleBackward {
  static constexpr const char* kName = "ReluMaxPool2DBackwardBackward";
  using Settings = PoolSettings;

  static variable_list compute(const variable_list& grads, const Saved<PoolSettings>& saved) {
    if (!grads[0].defined()) {
      return variable_list(1);
    }
    return {take_won(grads[0], saved.tensors[0], saved.settings.window())};
  }
};

/// Set the result's history, so that its gradient propagates to `from`.
template <typename Formula>
void set_history(const at::Tensor& result, const at::Tensor& from, const at::Tensor& winners,
                 const PoolWindow& window, c10::SymIntArrayRef input_size) {
  const auto node = make_node<FormulaNode<Formula>>(PoolSettings{
      .input_size = input_size.vec(),
      .kernel_size = window.kernel_size.vec(),
      .stride = window.stride.vec(),
      .padding = window.padding.vec(),
      .dilation = window.dilation.vec(),
      .ceil_mode = window.ceil_mode,
  });
  node->save_inputs(winners);
  node->set_next_edges(torch::autograd::collect_next_edges(from));
  torch::autograd::set_history(result, node);
}

std::tuple<at::Tensor, at::Tensor> with_winners(const at::Tensor& input, const PoolWindow& window) {
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return relu_max_pool2d_with_winners(input, window);
  }();
  const auto& [output, winners] = results;
  if (torch::autograd::compute_requires_grad(input)) {
    set_history<PoolBackward>(output, input, winners, window, input.sym_sizes());
  }
  if (isFwGradDefined(input)) {
    set_tangent(output, take_won(input._fw_grad(/*level=*/0), winners, window));
  }
  return results;
}

at::Tensor forward(const at::Tensor& input, const PoolWindow& window) {
  if (torch::autograd::compute_requires_grad(input) || isFwGradDefined(input)) {
    return std::get<0>(with_winners(input, window));
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return relu_max_pool2d(input, window);
}

at::Tensor backward(const at::Tensor& grad_output, const at::Tensor& winners,
                    c10::SymIntArrayRef input_size, const PoolWindow& window) {
  const at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return relu_max_pool2d_backward(grad_output, winners, input_size, window);
  }();
  if (torch::autograd::compute_requires_grad(grad_output)) {
    set_history<PoolDoubleBackward>(result, grad_output, winners, window, input_size);
  }
  if (isFwGradDefined(grad_output)) {
    set_tangent(result, relu_max_pool2d_backward(grad_output._fw_grad(/*level=*/0), winners,
                                                 input_size, window));
  }
  return result;
}

at::Tensor indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                   const PoolWindow& window) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return relu_max_pool2d_indices(winners, input_size, window);
}

/// An op, whose last arguments are those of a window.
template <typename Result, typename... Others>
class WindowOp {
 public:
  explicit WindowOp(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>()) {}

  Result operator()(Others... others, const PoolWindow& window) const {
    return handle_.call(others..., window.kernel_size, window.stride, window.padding,
                        window.dilation, window.ceil_mode);
  }

 private:
  using Signature = Result(Others..., at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, bool);
  c10::TypedOperatorHandle<Signature> handle_;
};

}  // namespace

at::Tensor relu_max_pool2d(const at::Tensor& input, const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&> op("convtime::relu_max_pool2d");
  return op(input, window);
}

std::tuple<at::Tensor, at::Tensor> relu_max_pool2d_with_winners(const at::Tensor& input,
                                                                const PoolWindow& window) {
  static const WindowOp<std::tuple<at::Tensor, at::Tensor>, const at::Tensor&> op(
      "convtime::relu_max_pool2d_with_winners");
  return op(input, window);
}

at::Tensor relu_max_pool2d_backward(const at::Tensor& grad_output, const at::Tensor& winners,
                                    c10::SymIntArrayRef input_size, const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef> op(
      "convtime::relu_max_pool2d_backward");
  return op(grad_output, winners, input_size, window);
}

at::Tensor relu_max_pool2d_indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                                   const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&, c10::SymIntArrayRef> op(
      "convtime::relu_max_pool2d_indices");
  return op(winners, input_size, window);
}

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("relu_max_pool2d", with_window<forward, const at::Tensor&>);
  library.impl("relu_max_pool2d_with_winners", with_window<with_winners, const at::Tensor&>);
  library.impl("relu_max_pool2d_backward",
               with_window<backward, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef>);
  library.impl("relu_max_pool2d_indices",
               with_window<indices, const at::Tensor&, c10::SymIntArrayRef>);
}

}  // namespace convtime::ops
