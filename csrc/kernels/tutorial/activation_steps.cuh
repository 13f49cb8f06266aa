#pragma once

#include <cstddef>

#include "kernels/activate.cuh"
#include "kernels/tutorial/builds.cuh"

namespace convtime::tutorial {

using elements::is_aligned;
using elements::Pack;

/// Return the activation's derivative at x, times the output's gradient; in float, like PyTorch's
/// own kernels.
template <Activation kActivation>
float activation_gradient(float x, float grad) {
  if constexpr (kActivation == Activation::kRelu) {
    return x <= 0 ? 0.0f : grad;
  } else if constexpr (kActivation == Activation::kGelu) {
    const float cdf = 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
    const float pdf = expf(-0.5f * x * x) * 0.39894228040143267794f;
    return grad * (cdf + x * pdf);
  } else {
    constexpr float kBeta = 0.79788456080286535588f;  // √(2/π)
    constexpr float kKappa = 0.044715f;
    const float tangent = tanhf(kBeta * (x + kKappa * x * x * x));
    const float slope = kBeta * (1.0f + 3.0f * kKappa * x * x);
    return grad * (0.5f * (1.0f + tangent) + 0.5f * x * (1.0f - tangent * tangent) * slope);
  }
}

/// N elements per thread, in one load if they are aligned and complete.
template <typename T, int N, Activation kActivation, bool kGradient>
struct ElementsPerThread {
  void operator()(const T* input, const T* grad_output, T* output, std::size_t count) const {
    const std::size_t first = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * N;
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
  static void compute(const T* input, const T* grad_output, T* output, std::size_t first,
                      std::size_t count) {
    const Pack<T, N> x = load_up_to<N, kWhole>(input + first, count);
    Pack<T, N> grad{};
    if constexpr (kGradient) {
      grad = load_up_to<N, kWhole>(grad_output + first, count);
    }
    Pack<T, N> result;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      const float number = widen(x.lane[lane]);
      result.lane[lane] = elements::narrow<T>(
          kGradient ? activation_gradient<kActivation>(number, widen(grad.lane[lane]))
                    : activate<kActivation>(number, 0.0f));
    }
    store_up_to<N, kWhole>(output + first, result, count);
  }
};

}  // namespace convtime::tutorial
