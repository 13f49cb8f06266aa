#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace convtime::ops {

/// A net whose weights are one tensor, in terms that a tracer of symbolic shapes can follow.
struct Layers {
  std::int64_t layers;
  c10::SymInt width;
  c10::SymInt inputs;
  c10::SymInt outputs;
  bool tanh;
  bool bias;

  Layers(const at::Tensor& input, const at::Tensor& weights, c10::SymInt columns,
         std::string_view activation)
      : layers(weights.sym_size(0).guard_int(__FILE__, __LINE__)),
        width(weights.sym_size(2)),
        inputs(input.sym_size(1)),
        outputs(std::move(columns)),
        tanh(activation == "tanh"),
        bias(weights.sym_size(1) != width) {}

  c10::SymInt rows(std::int64_t layer) const { return layer == layers - 1 ? outputs : width; }
  c10::SymInt columns(std::int64_t layer) const { return layer == 0 ? inputs : width; }

  /// Return the unpadded part of a layer's matrix.
  at::Tensor matrix(const at::Tensor& weights, std::int64_t layer) const {
    return weights.select(0, layer)
        .narrow_symint(0, 0, rows(layer))
        .narrow_symint(1, 0, columns(layer));
  }

  at::Tensor biases(const at::Tensor& weights, std::int64_t layer) const {
    return weights.select(0, layer).select_symint(0, width).narrow_symint(0, 0, rows(layer));
  }

  /// Return input · matrixᵀ + biases.
  at::Tensor apply(const at::Tensor& weights, std::int64_t layer, const at::Tensor& input) const {
    const at::Tensor product = input.mm(matrix(weights, layer).t());
    return bias ? product + biases(weights, layer) : product;
  }

  /// Return the gradient of a layer's weights with zeros as padding.
  at::Tensor pad(std::int64_t layer, const at::Tensor& of_matrix,
                 const at::Tensor& of_biases) const {
    const c10::SymInt below = width - rows(layer);
    const at::Tensor padded =
        at::constant_pad_nd_symint(of_matrix, {0, width - columns(layer), 0, below});
    if (!bias) {
      return padded;
    }
    return at::cat({padded, at::constant_pad_nd_symint(of_biases, {0, below}).unsqueeze(0)});
  }

  at::Tensor activate(const at::Tensor& sums) const {
    return tanh ? at::tanh(sums) : at::relu(sums);
  }

  /// Multiply by the activation's derivative, computed from its output. As in the kernels, NaN
  /// passes through ReLU.
  at::Tensor times_slope(const at::Tensor& factor, const at::Tensor& activated) const {
    return tanh ? factor * (1 - activated * activated) : factor.masked_fill(activated.le(0), 0);
  }
};

/// Autocast would shorten ATen's products, but not those of the kernels.
inline c10::impl::ExcludeDispatchKeyGuard without_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

}  // namespace convtime::ops
