#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/elements.cuh"
#include "kernels/half.cuh"
#include "kernels/relu_max_pool2d/windows.h"

namespace convtime::pool {

using namespace elements;
using convtime::max_nan;

inline int clamp(int value, int last) { return max(0, min(value, last)); }

// --- Numbers

template <typename T>
bool is_equal(T a, T b) {
  return widen(a) == widen(b);
}
inline bool is_equal(Half a, Half b) {  // without conversions
  int result;
  asm("{.reg .pred p; setp.eq.f16 p, %1, %2; selp.s32 %0, 1, 0, p;}"
      : "=r"(result)
      : "h"(a.bits), "h"(b.bits));
  return result != 0;
}

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, unsigned short, T>;

/// Return the value of the lane so far away.
template <int kDistance, typename T>
T shuffle(T value) {
  Bits<T> bits;
  memcpy(&bits, &value, sizeof(T));
  if constexpr (kDistance < 0) {
    bits = static_cast<Bits<T>>(__shfl_up_sync(0xffffffff, bits, -kDistance));
  } else {
    bits = static_cast<Bits<T>>(__shfl_down_sync(0xffffffff, bits, kDistance));
  }
  memcpy(&value, &bits, sizeof(T));
  return value;
}

/// Read memory that no thread writes, or return zeros.
template <typename P>
P load_if(bool condition, const P* from) {
  Word<P> word{};
  if (condition) {
    word = __ldg(as_words(from));
  }
  return from_word<P>(word);
}

// --- Vectors of elements

/// The type whose maxima one instruction computes.
template <typename T>
struct UnitOf {
  using type = T;
};
template <>
struct UnitOf<Half> {
  using type = HalfPair;
};
template <>
struct UnitOf<BFloat16> {
  using type = BFloat16Pair;
};

template <typename T, int N>
Pack<T, N> max_nan(const Pack<T, N>& a, const Pack<T, N>& b) {
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
Pack<T, N> relu(const Pack<T, N>& value) {
  return max_nan(value, Pack<T, N>{});
}

// --- Winners

/// The highest bit of a winner.
template <typename Winner>
constexpr Winner kDead = static_cast<Winner>(Winner(1) << (8 * sizeof(Winner) - 1));

/// What the maximum of a window without elements is.
template <typename T>
Wide<T> lowest() {
  return -__int_as_float(0x7f800000);
}

/// The largest values so far, without their positions.
template <typename T, int N>
struct Maximum {
  Pack<T, N> best;

  Maximum() = default;
  Maximum(bool is_empty, int) : best{} {
    if (is_empty) {
      const T least = narrow<T>(lowest<T>());
#pragma unroll
      for (int i = 0; i < N; ++i) {
        best.lane[i] = least;
      }
    }
  }
  void challenge(const Pack<T, N>& other, int) { best = max_nan(best, other); }
  void challenge(const Maximum& other, int) { best = max_nan(best, other.best); }
  Pack<T, N> values() const { return best; }
};

/// The largest values so far, and their positions. PyTorch takes the first of equal values, but the
/// last NaN.
template <typename T, int N>
struct Leader {
  Wide<T> value[N];
  int position[N];

  Leader() = default;
  Leader(bool is_empty, int first_position) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      value[i] = is_empty ? lowest<T>() : 0;
      position[i] = first_position;
    }
  }
  void challenge(int i, Wide<T> other, int at) {
    const bool wins = other > value[i] || other != other;
    value[i] = wins ? other : value[i];
    position[i] = wins ? at : position[i];
  }
  void challenge(const Pack<T, N>& other, int at) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      challenge(i, widen(other.lane[i]), at);
    }
  }
  /// Positions are those of the other leader, relative to `first`.
  void challenge(const Leader& other, int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      challenge(i, other.value[i], first + other.position[i]);
    }
  }
  Pack<T, N> values() const {
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      result.lane[i] = narrow<T>(value[i]);
    }
    return result;
  }
  template <typename Winner>
  Pack<Winner, N> winners() const {
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

// --- Positions

/// Return an axis with its sizes, which a kernel for images of any size reads. Device code uses
/// this copy: the compiler places the members of template arguments that functions read in memory.
template <Axis kAxis>
Axis axis_of(const Size& size) {
  return {kAxis.has_size() ? kAxis.input : size.input,
          kAxis.has_size() ? kAxis.output : size.output,
          kAxis.kernel,
          kAxis.stride,
          kAxis.padding,
          kAxis.dilation};
}

/// A thread's task, and the first of its packs of channels.
struct Position {
  int plane;
  int row;
  int column;
  int channel;
};

/// Return the quotient, and set the number to the remainder.
template <int kDivisor>
int split(int& number) {
  const int result = quotient(number, kDivisor);
  number -= result * kDivisor;
  return result;
}

/// Return a thread's position. Rows are those of tasks, times the band.
template <Family kFamily, Problem P>
Position position_of(const Call& call, int thread) {
  int channel = thread;
  int row_in_band = split<P.channels>(channel);
  int column = split<P.band>(row_in_band);
  if constexpr (P.has_sizes()) {
    int row = split<tasks_of(kFamily, P).columns>(column);
    const int plane = split<tasks_of(kFamily, P).rows>(row);
    return {plane, row * P.band + row_in_band, column, channel};
  } else {
    int row = call.columns.split(column);
    const int plane = call.rows.split(row);
    return {plane, row * P.band + row_in_band, column, channel};
  }
}

}  // namespace convtime::pool
