#pragma once

#include "core/activation.h"

namespace convtime {

/// Computes in float or double, like PyTorch's own kernels, so that NaN and infinities propagate in
/// the same way.
template <Activation kActivation, typename Number>
Number activate(Number x, Number negative_slope) {
  if constexpr (kActivation == Activation::kRelu) {
    return x < 0 ? Number(0) : x;
  } else if constexpr (kActivation == Activation::kRelu6) {
    return x < 0 ? Number(0) : (x > 6 ? Number(6) : x);
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return x > 0 ? x : x * negative_slope;
  } else if constexpr (kActivation == Activation::kGelu) {
    return x * Number(0.5) * (Number(1) + erf(x * Number(0.70710678118654752440)));
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const Number inner = Number(0.79788456080286535588) * (x + Number(0.044715) * x * x * x);
    return Number(0.5) * x * (Number(1) + tanh(inner));
  } else if constexpr (kActivation == Activation::kSilu) {
    return x / (Number(1) + exp(-x));
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return Number(1) / (Number(1) + exp(-x));
  } else if constexpr (kActivation == Activation::kTanh) {
    return tanh(x);
  } else {
    return x;
  }
}

}  // namespace convtime
