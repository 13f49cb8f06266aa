#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "ops/kernels/relu_max_pool2d.h"

namespace convtime::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void save(AutogradContext* context, const PoolWindow& window) {
  context->saved_data["kernel_size"] = window.kernel_size.vec();
  context->saved_data["stride"] = window.stride.vec();
  context->saved_data["padding"] = window.padding.vec();
  context->saved_data["dilation"] = window.dilation.vec();
  context->saved_data["ceil_mode"] = window.ceil_mode;
}

/// What save() has saved; the ArrayRefs of a PoolWindow own nothing.
struct SavedWindow {
  explicit SavedWindow(AutogradContext* context)
      : kernel_size(context->saved_data["kernel_size"].toIntVector()),
        stride(context->saved_data["stride"].toIntVector()),
        padding(context->saved_data["padding"].toIntVector()),
        dilation(context->saved_data["dilation"].toIntVector()),
        ceil_mode(context->saved_data["ceil_mode"].toBool()) {}

  PoolWindow window() const { return {kernel_size, stride, padding, dilation, ceil_mode}; }

  std::vector<std::int64_t> kernel_size;
  std::vector<std::int64_t> stride;
  std::vector<std::int64_t> padding;
  std::vector<std::int64_t> dilation;
  bool ceil_mode;
};

/// Of something of the input's shape, what the outputs won, and zero where they are dead: the
/// derivative in forward mode, and that of the backward pass.
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

class Backward : public torch::autograd::Function<Backward> {
 public:
  static constexpr bool is_traceable = true;  // for compiled autograd

  static Variable forward(AutogradContext* context, const Variable& grad_output,
                          const Variable& winners, c10::SymIntArrayRef input_size,
                          const PoolWindow& window) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({winners});
    save(context, window);
    return relu_max_pool2d_backward(grad_output, winners, input_size, window);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) {
      return variable_list(4);
    }
    const SavedWindow saved(context);
    return {take_won(grads[0], context->get_saved_variables()[0], saved.window()), {}, {}, {}};
  }
};

class Forward : public torch::autograd::Function<Forward> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* context, const Variable& input,
                               const PoolWindow& window) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [output, winners] = relu_max_pool2d_with_winners(input, window);
    context->save_for_backward({winners});
    context->saved_data["input_size"] = input.sym_sizes().vec();
    save(context, window);
    return {output, winners};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) {
      return variable_list(2);
    }
    const SavedWindow saved(context);
    const std::vector<c10::SymInt> input_size = context->saved_data["input_size"].toSymIntVector();
    return {relu_max_pool2d_backward(grads[0], context->get_saved_variables()[0], input_size,
                                     saved.window()),
            {}};
  }
};

/// A tensor without its tangent, which torch::autograd::Function refuses.
at::Tensor primal_of(const at::Tensor& tensor) {
  return torch::autograd::isFwGradDefined(tensor) ? tensor._fw_primal(/*level=*/0) : tensor;
}

void set_tangent(const at::Tensor& result, const at::Tensor& tangent) {
  result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}

std::tuple<at::Tensor, at::Tensor> with_winners(const at::Tensor& input,
                                                at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                                at::IntArrayRef padding, at::IntArrayRef dilation,
                                                bool ceil_mode) {
  const PoolWindow window{kernel_size, stride, padding, dilation, ceil_mode};
  variable_list results = Forward::apply(primal_of(input), window);
  if (torch::autograd::isFwGradDefined(input)) {
    set_tangent(results[0], take_won(input._fw_grad(0), results[1], window));
  }
  return {results[0], results[1]};
}

at::Tensor forward(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  if (torch::autograd::compute_requires_grad(input) || torch::autograd::isFwGradDefined(input)) {
    return std::get<0>(with_winners(input, kernel_size, stride, padding, dilation, ceil_mode));
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return relu_max_pool2d(input, {kernel_size, stride, padding, dilation, ceil_mode});
}

at::Tensor backward(const at::Tensor& grad_output, const at::Tensor& winners,
                    c10::SymIntArrayRef input_size, at::IntArrayRef kernel_size,
                    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                    bool ceil_mode) {
  const PoolWindow window{kernel_size, stride, padding, dilation, ceil_mode};
  const at::Tensor result = Backward::apply(primal_of(grad_output), winners, input_size, window);
  if (torch::autograd::isFwGradDefined(grad_output)) {
    set_tangent(result,
                relu_max_pool2d_backward(grad_output._fw_grad(0), winners, input_size, window));
  }
  return result;
}

at::Tensor indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                   at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool ceil_mode) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return relu_max_pool2d_indices(winners, input_size,
                                 {kernel_size, stride, padding, dilation, ceil_mode});
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

}  // namespace

at::Tensor relu_max_pool2d(const at::Tensor& input, const PoolWindow& window) {
  static const auto handle =
      op<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                    at::IntArrayRef, bool)>("convtime::relu_max_pool2d");
  return handle.call(input, window.kernel_size, window.stride, window.padding, window.dilation,
                     window.ceil_mode);
}

std::tuple<at::Tensor, at::Tensor> relu_max_pool2d_with_winners(const at::Tensor& input,
                                                                const PoolWindow& window) {
  static const auto handle = op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool)>(
      "convtime::relu_max_pool2d_with_winners");
  return handle.call(input, window.kernel_size, window.stride, window.padding, window.dilation,
                     window.ceil_mode);
}

at::Tensor relu_max_pool2d_backward(const at::Tensor& grad_output, const at::Tensor& winners,
                                    c10::SymIntArrayRef input_size, const PoolWindow& window) {
  static const auto handle =
      op<at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, at::IntArrayRef,
                    at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool)>(
          "convtime::relu_max_pool2d_backward");
  return handle.call(grad_output, winners, input_size, window.kernel_size, window.stride,
                     window.padding, window.dilation, window.ceil_mode);
}

at::Tensor relu_max_pool2d_indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                                   const PoolWindow& window) {
  static const auto handle =
      op<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, at::IntArrayRef, at::IntArrayRef,
                    at::IntArrayRef, at::IntArrayRef, bool)>("convtime::relu_max_pool2d_indices");
  return handle.call(winners, input_size, window.kernel_size, window.stride, window.padding,
                     window.dilation, window.ceil_mode);
}

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("relu_max_pool2d", forward);
  library.impl("relu_max_pool2d_with_winners", with_winners);
  library.impl("relu_max_pool2d_backward", backward);
  library.impl("relu_max_pool2d_indices", indices);
}

}  // namespace convtime::ops
