#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <tuple>

namespace convtime::ops {

/// The arguments that the ops of relu_max_pool2d share, as in their schemas.
struct PoolWindow {
  at::IntArrayRef kernel_size;
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
  bool ceil_mode;
};

/// The implementation of an op by a function that takes the window as one argument.
template <auto kFunction, typename... Others>
auto with_window(Others... others, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  return kFunction(others..., PoolWindow{kernel_size, stride, padding, dilation, ceil_mode});
}

// The ops, called through the dispatcher.

at::Tensor relu_max_pool2d(const at::Tensor& input, const PoolWindow& window);
std::tuple<at::Tensor, at::Tensor> relu_max_pool2d_with_winners(const at::Tensor& input,
                                                                const PoolWindow& window);
at::Tensor relu_max_pool2d_backward(const at::Tensor& grad_output, const at::Tensor& winners,
                                    c10::SymIntArrayRef input_size, const PoolWindow& window);
at::Tensor relu_max_pool2d_indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                                   const PoolWindow& window);

}  // namespace convtime::ops
