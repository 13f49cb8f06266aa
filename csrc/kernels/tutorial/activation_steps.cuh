#pragma once

#include <cstddef>
#include <stdexcept>
#include <type_traits>

#include "kernels/activate.cuh"
#include "kernels/tutorial/builds.cuh"

namespace convtime::tutorial {

using elements::kLanes;
using elements::Pack;

/// Return the activation's derivative at x, times the output's gradient; in float, like PyTorch's
/// own kernels.
template <Activation kActivation>
__device__ float activation_gradient(float x, float grad) {
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
  __device__ void operator()(const T* input, const T* grad_output, T* output,
                             std::size_t count) const {
    const std::size_t first = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * N;
    if (first >= count) {
      return;
    }
    const bool aligned = is_aligned_to_vectors(input) && is_aligned_to_vectors(grad_output) &&
                         is_aligned_to_vectors(output);
    if (count - first >= N && (N == 1 || aligned)) {
      compute<true>(input, grad_output, output, first, N);
    } else {
      compute<false>(input, grad_output, output, first, count - first);
    }
  }

  template <bool kWhole>
  __device__ static void compute(const T* input, const T* grad_output, T* output, std::size_t first,
                                 std::size_t count) {
    const Pack<T, N> x = load_up_to<N, kWhole>(input + first, count);
    Pack<T, N> grad{};
    if constexpr (kGradient) {
      grad = load_up_to<N, kWhole>(grad_output + first, count);
    }
    Pack<T, N> result;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      const float number = elements::widen(x.lane[lane]);
      result.lane[lane] = elements::narrow<T>(
          kGradient ? activation_gradient<kActivation>(number, elements::widen(grad.lane[lane]))
                    : activate<kActivation>(number, 0.0f));
    }
    store_up_to<N, kWhole>(output + first, result, count);
  }
};

/// Call use(kernel, launch) with the kernel from Builds.
template <typename T, typename Builds, typename Use>
void with_activation_kernel(const ActivationCall& call, const Use& use) {
  const auto take = [&](auto activation, auto gradient, auto lanes) {
    using Step = ElementsPerThread<T, decltype(lanes)::value, decltype(activation)::value,
                                   decltype(gradient)::value>;
    constexpr std::size_t kPerBlock = std::size_t{kThreads} * decltype(lanes)::value;
    use(Builds::template kernel<Step, const T*, const T*, T*, std::size_t>(call.build),
        Launch{(call.count + kPerBlock - 1) / kPerBlock});
  };
  const auto with_lanes = [&](auto activation, auto gradient) {
    if (call.step == ActivationStep::kNaive) {
      take(activation, gradient, std::integral_constant<int, 1>());
    } else {
      take(activation, gradient, std::integral_constant<int, kLanes<T>>());
    }
  };
  const auto with_gradient = [&](auto activation) {
    if (call.is_gradient) {
      with_lanes(activation, std::true_type());
    } else {
      with_lanes(activation, std::false_type());
    }
  };
  switch (call.activation) {
    case Activation::kRelu:
      return with_gradient(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kGelu:
      return with_gradient(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kGeluTanh:
      return with_gradient(std::integral_constant<Activation, Activation::kGeluTanh>());
    default:
      throw std::invalid_argument("the tutorial only supports relu, gelu and gelu_tanh");
  }
}

template <typename Builds>
void launch_activation_of(const ActivationCall& call, cudaStream_t stream) {
  for_step_type(call.type, [&](auto number) {
    using T = decltype(number);
    with_activation_kernel<T, Builds>(call, [&](auto kernel, const Launch& launch) {
      kernel<<<launch.blocks, kThreads, 0, stream>>>(
          static_cast<const T*>(call.input), static_cast<const T*>(call.grad_output),
          static_cast<T*>(call.output), static_cast<std::size_t>(call.count));
    });
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

template <typename Builds>
KernelFacts activation_facts_of(const ActivationCall& call) {
  KernelFacts facts{};
  for_step_type(call.type, [&](auto number) {
    with_activation_kernel<decltype(number), Builds>(
        call, [&](auto kernel, const Launch& launch) { facts = facts_of(kernel, launch); });
  });
  return facts;
}

// Functions for Build::kFastMath, which is compiled in a separate file.
void launch_fast_math_activation(const ActivationCall& call, cudaStream_t stream);
KernelFacts fast_math_activation_facts(const ActivationCall& call);

}  // namespace convtime::tutorial
