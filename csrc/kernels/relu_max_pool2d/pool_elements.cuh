#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"

namespace convtime::pool {

constexpr unsigned kThreads = 128;

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
__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline double max_nan(double a, double b) { return a > b || a != a ? a : b; }

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

/// What sums are made in.
template <typename T>
using Wide = decltype(widen(T()));

template <typename T>
__device__ T narrow(Wide<T> value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// --- Vectors of elements
// -----------------------------------------------------------------------------

/// What one instruction takes the maxima of.
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

/// So many elements, loaded and stored as one where they are at most 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T lane[N];
};

template <typename T>
constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

/// 16 bytes.
template <typename T>
using Vector = Pack<T, kLanes<T>>;

template <typename T>
__device__ Vector<T> max_nan(const Vector<T>& a, const Vector<T>& b) {
  using Unit = typename UnitOf<T>::type;
  using Units = Pack<Unit, 16 / sizeof(Unit)>;
  const Units ua = *reinterpret_cast<const Units*>(&a);
  const Units ub = *reinterpret_cast<const Units*>(&b);
  Units result;
#pragma unroll
  for (unsigned i = 0; i < 16 / sizeof(Unit); ++i) {
    result.lane[i] = max_nan(ua.lane[i], ub.lane[i]);
  }
  return *reinterpret_cast<const Vector<T>*>(&result);
}

template <typename T>
__device__ Vector<T> zeros() {
  Vector<T> result;
  *reinterpret_cast<uint4*>(&result) = make_uint4(0, 0, 0, 0);
  return result;
}

/// What has as many bytes, and is read and written at once.
template <typename P>
using Word = std::conditional_t<
    sizeof(P) == 16, uint4,
    std::conditional_t<
        sizeof(P) == 8, uint2,
        std::conditional_t<sizeof(P) == 4, unsigned,
                           std::conditional_t<sizeof(P) == 2, unsigned short, unsigned char>>>>;

/// A read of what no thread writes.
template <typename P>
__device__ P load(const P* from) {
  static_assert(sizeof(P) == 16 || sizeof(P) == 8 || sizeof(P) == 4 || sizeof(P) == 2 ||
                sizeof(P) == 1);
  const Word<P> word = __ldg(reinterpret_cast<const Word<P>*>(from));
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

/// A write as one word.
template <typename P>
__device__ void store(P* to, const P& value) {
  Word<P> word;
  memcpy(&word, &value, sizeof(P));
  *reinterpret_cast<Word<P>*>(to) = word;
}

// --- Geometry
// ------------------------------------------------------------------------------------------

__device__ inline int clamp(int value, int last) { return max(0, min(value, last)); }

/// The highest bit of a winner.
template <typename Winner>
constexpr Winner kDead = static_cast<Winner>(Winner(1) << (8 * sizeof(Winner) - 1));

template <typename Winner>
__device__ bool is_alive(Winner winner) {
  return (winner & kDead<Winner>) == 0;
}

inline std::int64_t window_size(const PoolGeometry& g) {
  return std::int64_t{g.h.kernel} * g.w.kernel;
}

/// Whether both axes have such windows: those that vectorised kernels are made for.
inline bool has_windows(const PoolGeometry& g, int kernel, int stride, int padding) {
  const auto fits = [&](const PoolAxis& axis) {
    return axis.kernel == kernel && axis.stride == stride && axis.padding == padding &&
           axis.dilation == 1;
  };
  return fits(g.h) && fits(g.w);
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Calls function(T()) for the type's T.
template <typename Function>
void for_type(PoolType type, const Function& function) {
  switch (type) {
    case PoolType::kHalf:
      return function(__half());
    case PoolType::kBFloat16:
      return function(__nv_bfloat16());
    case PoolType::kFloat:
      return function(float());
    case PoolType::kDouble:
      return function(double());
  }
}

inline constexpr std::int64_t kMax32 = 0x7fffffff;

/// Threads of a vectorised kernel, each with its number in 32 bits.
struct Grid {
  std::int64_t threads;
  bool fits() const { return threads > 0 && threads <= kMax32; }
  unsigned blocks() const { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }
};

/// Whether int holds each index, and each coordinate beyond the edges that a window reaches to.
inline bool fits_32_bits(const PoolGeometry& g) {
  const auto reach = [](const PoolAxis& axis) {
    return axis.input + 2 * std::int64_t{axis.padding} + axis.stride +
           std::int64_t{axis.dilation} * axis.kernel;
  };
  const std::int64_t planes = g.batch * g.channels;
  const std::int64_t elements = planes * std::max(g.h.input * g.w.input, g.h.output * g.w.output);
  // Loops go beyond their last index by the threads of a grid.
  return elements + (std::int64_t{kThreads} << 20) < kMax32 && reach(g.h) < kMax32 &&
         reach(g.w) < kMax32 && window_size(g) < kMax32;
}

/// Blocks for a loop over so many elements.
inline unsigned loop_blocks(std::int64_t count) {
  return static_cast<unsigned>(
      std::min<std::int64_t>((count + kThreads - 1) / kThreads, std::int64_t{1} << 20));
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace convtime::pool
