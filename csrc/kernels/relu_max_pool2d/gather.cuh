#pragma once

#include <cstdint>

#include "kernels/relu_max_pool2d/pool_elements.cuh"

namespace convtime::pool {

/// Windows of K × K elements with a stride of S, without dilation, and with a padding whose
/// remainder modulo S is P. Input elements are in groups of S × S, which begin at multiples of S:
/// the elements of a group are in the same few windows. kFirst is the number of the first, relative
/// to the group's number plus padding / S.
template <int K, int S, int P>
struct Grouped {
  static constexpr int kKernel = K;
  static constexpr int kStride = S;
  static constexpr int kPadding = P;
  static constexpr int kFirst = -((K - 1 - P) / S);
  static constexpr int kWindows = (S - 1 + P) / S - kFirst + 1;
};

template <typename T>
struct Won {
  std::uint8_t winner;
  T gradient;
};

/// Return the gradient of the element at (row, column) in its group: the sum of the gradients of
/// the windows that it won, in their order. output(i, j) returns those of the group's windows.
template <typename Group, typename T, typename Output>
__device__ T gather(int row, int column, const Output& output) {
  constexpr int K = Group::kKernel;
  Wide<T> sum = 0;
#pragma unroll
  for (int i = 0; i < Group::kWindows; ++i) {
#pragma unroll
    for (int j = 0; j < Group::kWindows; ++j) {
      const int r = row + Group::kPadding - (i + Group::kFirst) * Group::kStride;
      const int c = column + Group::kPadding - (j + Group::kFirst) * Group::kStride;
      if (0 <= r && r < K && 0 <= c && c < K) {
        const auto [winner, gradient] = output(i, j);
        sum += winner == r * K + c ? widen(gradient) : Wide<T>(0);
      }
    }
  }
  return narrow<T>(sum);
}

/// Return what launch(Grouped<…>()) returns, or false if no kernel is compiled for these windows.
template <typename Launch>
bool with_grouped(const PoolGeometry& g, const Launch& launch) {
  const auto try_windows = [&]<int K, int S, int P>(Grouped<K, S, P> windows) {
    return has_windows(g, K, S) && g.h.padding % S == P && g.w.padding % S == P && launch(windows);
  };
  return try_windows(Grouped<3, 2, 0>()) || try_windows(Grouped<3, 2, 1>()) ||
         try_windows(Grouped<2, 2, 0>()) || try_windows(Grouped<3, 1, 0>()) ||
         try_windows(Grouped<2, 1, 0>());
}

}  // namespace convtime::pool
