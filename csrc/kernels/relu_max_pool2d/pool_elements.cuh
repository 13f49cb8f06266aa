#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/elements.cuh"
#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

using namespace elements;

// --- Numbers: maxima that keep NaN, as PyTorch's do
// --------------------------------------------------

__device__ inline __half max_nan(__half a, __half b) { return __hmax_nan(a, b); }
__device__ inline __half2 max_nan(__half2 a, __half2 b) { return __hmax2_nan(a, b); }
__device__ inline __nv_bfloat16 max_nan(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __hmax_nan(a, b);
}
__device__ inline __nv_bfloat162 max_nan(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmax2_nan(a, b);
}
__device__ inline double max_nan(double a, double b) { return a > b || a != a ? a : b; }
__device__ inline float max_nan(float a, float b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a > b || a != a ? a : b;
#endif
}

// --- Vectors of elements
// -----------------------------------------------------------------------------

/// The type whose maxima one instruction computes.
template <typename T>
struct UnitOf {
  using type = T;
};
template <>
struct UnitOf<__half> {
  using type = __half2;
};
template <>
struct UnitOf<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

template <typename T, int N>
__device__ Pack<T, N> max_nan(const Pack<T, N>& a, const Pack<T, N>& b) {
  using Unit = std::conditional_t<N == 1, T, typename UnitOf<T>::type>;
  constexpr int kUnits = N * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Unit));
  using Units = Pack<Unit, kUnits>;
  const Units ua = *reinterpret_cast<const Units*>(&a);
  const Units ub = *reinterpret_cast<const Units*>(&b);
  Units result;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    result.lane[i] = max_nan(ua.lane[i], ub.lane[i]);
  }
  return *reinterpret_cast<const Pack<T, N>*>(&result);
}

template <typename T, int N>
__device__ Pack<T, N> relu(const Pack<T, N>& value) {
  Pack<T, N> zeros;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    zeros.lane[i] = T(0);
  }
  return max_nan(value, zeros);
}

// --- Winners
// -----------------------------------------------------------------------------------------

/// The highest bit of a winner.
template <typename Winner>
constexpr Winner kDead = static_cast<Winner>(Winner(1) << (8 * sizeof(Winner) - 1));

/// Return a pack of equal values.
template <typename T, int N>
__device__ Pack<T, N> filled(float value) {
  Pack<T, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    result.lane[i] = narrow<T>(value);
  }
  return result;
}

/// The largest values so far, and their positions. PyTorch takes the first of equal values, but the
/// last NaN.
template <typename T, int N>
struct Leader {
  Wide<T> value[N];
  int position[N];

  Leader() = default;
  __device__ Leader(Wide<T> least, int first_position) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      value[i] = least;
      position[i] = first_position;
    }
  }
  __device__ void challenge(int i, Wide<T> other, int at) {
    const bool wins = other > value[i] || other != other;
    value[i] = wins ? other : value[i];
    position[i] = wins ? at : position[i];
  }
  __device__ void challenge(const Pack<T, N>& other, int at) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      challenge(i, widen(other.lane[i]), at);
    }
  }
  /// Positions are those of the other leader, relative to `first`.
  __device__ void challenge(const Leader& other, int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      challenge(i, other.value[i], first + other.position[i]);
    }
  }
  __device__ Pack<T, N> values() const {
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      result.lane[i] = narrow<T>(value[i]);
    }
    return result;
  }
  template <typename Winner>
  __device__ Pack<Winner, N> winners() const {
    Pack<Winner, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool is_alive = value[i] > 0 || value[i] != value[i];
      const auto winner = static_cast<Winner>(position[i]);
      result.lane[i] = is_alive ? winner : static_cast<Winner>(winner | kDead<Winner>);
    }
    return result;
  }
};

// --- Geometry
// ------------------------------------------------------------------------------------------

__device__ inline int clamp(int value, int last) { return max(0, min(value, last)); }

inline std::int64_t window_size(const PoolGeometry& g) {
  return std::int64_t{g.h.kernel} * g.w.kernel;
}

/// Return whether both axes have such windows without dilation. None of them is empty.
inline bool has_windows(const PoolGeometry& g, int kernel, int stride) {
  const auto fits = [&](const PoolAxis& axis) {
    return axis.kernel == kernel && axis.stride == stride && axis.dilation == 1;
  };
  return fits(g.h) && fits(g.w);
}

inline bool has_padding(const PoolGeometry& g, int padding) {
  return g.h.padding == padding && g.w.padding == padding;
}

inline constexpr std::int64_t kMax32 = 0x7fffffff;

/// Threads of a vectorized kernel, indexed with 32 bits.
struct Grid {
  std::int64_t threads;
  bool fits() const { return threads > 0 && threads <= kMax32; }
  unsigned blocks() const { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }
};

/// Return whether int can hold each index of so many planes' elements, each position in a window,
/// and each coordinate beyond the edges that a window reaches.
inline bool planes_fit_32_bits(const PoolGeometry& g, std::int64_t planes) {
  const auto reach = [](const PoolAxis& axis) {
    return axis.input + 2 * std::int64_t{axis.padding} + axis.stride +
           std::int64_t{axis.dilation} * axis.kernel;
  };
  const std::int64_t elements = planes * std::max(g.h.input * g.w.input, g.h.output * g.w.output);
  // Indices of the last block's threads exceed the end.
  return elements + kThreads < kMax32 && reach(g.h) < kMax32 && reach(g.w) < kMax32 &&
         window_size(g) < kMax32;
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace convtime::pool
