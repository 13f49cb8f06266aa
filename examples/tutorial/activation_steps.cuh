#pragma once

#include "memory.cuh"

enum class Activation { kRelu, kGelu, kGeluTanh };

constexpr float kBeta = 0.79788456080286535588f;  // √(2/π)
constexpr float kKappa = 0.044715f;

/// Return the activation of x, in float like PyTorch's own kernels.
template <Activation kActivation>
float activate(float x) {
  if constexpr (kActivation == Activation::kRelu) {
    return x < 0 ? 0.0f : x;
  } else if constexpr (kActivation == Activation::kGelu) {
    return x * 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
  } else {
    return 0.5f * x * (1.0f + tanhf(kBeta * (x + kKappa * x * x * x)));
  }
}

/// Return the activation's derivative at x, times the output's gradient.
template <Activation kActivation>
float activation_gradient(float x, float grad) {
  if constexpr (kActivation == Activation::kRelu) {
    return x <= 0 ? 0.0f : grad;
  } else if constexpr (kActivation == Activation::kGelu) {
    const float cdf = 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
    const float pdf = expf(-0.5f * x * x) * 0.39894228040143267794f;
    return grad * (cdf + x * pdf);
  } else {
    const float tangent = tanhf(kBeta * (x + kKappa * x * x * x));
    const float slope = kBeta * (1.0f + 3.0f * kKappa * x * x);
    return grad * (0.5f * (1.0f + tangent) + 0.5f * x * (1.0f - tangent * tangent) * slope);
  }
}

/// N elements per thread, in one load if they are aligned and complete.
template <typename T, int N, Activation kActivation, bool kGradient>
struct ElementsPerThread {
  void operator()(const T* input, const T* grad_output, T* output, int count) const {
    const int first = (blockIdx.x * kThreads + threadIdx.x) * N;
    if (first >= count) {
      return;
    }
    const bool aligned = is_aligned(input) && is_aligned(grad_output) && is_aligned(output);
    if (count - first >= N && (N == 1 || aligned)) {
      compute<true>(input, grad_output, output, first, N);
    } else {
      compute<false>(input, grad_output, output, first, count - first);
    }
  }

  template <bool kWhole>
  static void compute(const T* input, const T* grad_output, T* output, int first, int count) {
    const Pack<T, N> x = load_up_to<N, kWhole>(input + first, count);
    Pack<T, N> grad{};
    if constexpr (kGradient) {
      grad = load_up_to<N, kWhole>(grad_output + first, count);
    }
    Pack<T, N> result;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      const float value = widen(x.lane[lane]);
      result.lane[lane] =
          T(kGradient ? activation_gradient<kActivation>(value, widen(grad.lane[lane]))
                      : activate<kActivation>(value));
    }
    store_up_to<N, kWhole>(output + first, result, count);
  }
};
