#pragma once

#include "kernels/mlp/mlp.h"
#include "kernels/mlp/tensor_cores.cuh"

// A warp takes 16 rows of the batch through the layers. What comes out of one product is, in its
// registers, laid out as the next product wants its left operand: nothing is exchanged between
// warps, and the right operands, the weights, are all that is read.

namespace convtime::mlp {

constexpr int kWarpRows = 16;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }

/// Where a tile of W columns has the eight at 8 · chunk. Chunks of 16 bytes change places with the
/// row: eight rows of one chunk, and eight chunks of one row, lie in all 32 banks.
template <int W>
__device__ int tile_offset(int row, int chunk) {
  // As a constant for which eight it is, that need not wait for a register of its own.
  return row * W + (chunk / 8 * 8 + ((chunk ^ row) & 7)) * 8;
}

/// Sums of 16 rows × W columns. Lane 4 g + t has rows g and g + 8, in value[j] columns 8 j + 2 t
/// and its neighbour: two of row g, then two of row g + 8.
template <int W>
struct Sums {
  float value[W / 8][4] = {};
};

/// 16 rows × W columns of 16-bit numbers as a left operand: two Sums of eight columns each.
template <int W>
struct Rows {
  std::uint32_t word[W / 16][4];
};

template <typename T, int W>
__device__ Rows<W> round_rows(const Sums<W>& sums) {
  Rows<W> rows;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    const auto& left = sums.value[2 * k];
    const auto& right = sums.value[2 * k + 1];
    rows.word[k][0] = pack<T>(left[0], left[1]);
    rows.word[k][1] = pack<T>(left[2], left[3]);
    rows.word[k][2] = pack<T>(right[0], right[1]);
    rows.word[k][3] = pack<T>(right[2], right[3]);
  }
  return rows;
}

/// Where a tile has rows.word[k][part].
template <typename T, int W>
__device__ std::uint32_t* word_of(T* tile, int first_row, int k, int part) {
  T* const row = tile + tile_offset<W>(first_row + lane_id() / 4, 2 * k + part / 2);
  return reinterpret_cast<std::uint32_t*>(row + part % 2 * 8 * W) + lane_id() % 4;
}

template <typename T, int W>
__device__ void store_rows(T* tile, int first_row, const Rows<W>& rows) {
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      *word_of<T, W>(tile, first_row, k, part) = rows.word[k][part];
    }
  }
}

/// One side of a product, in a tile of W columns, of which the tensor cores take 16 × 16 numbers at
/// a time. Transposed, its rows are what is summed over; else its columns are.
template <bool kLeft, bool kTransposed, typename T, int W>
class Operand {
 public:
  /// Of the tile's columns from 16 · first on.
  __device__ explicit Operand(const T* tile, int first = 0) {
    // Of the four matrices of 8 × 8, the second lies below the first or to the right of it.
    const int matrix = lane_id() / 8;
    const int below = kLeft != kTransposed ? matrix % 2 : matrix / 2;
    const int right = kLeft != kTransposed ? matrix / 2 : matrix % 2;
    const int row = lane_id() % 8 + 8 * below;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows_[i] = tile + tile_offset<W>(row, 2 * (first + i) + right);
    }
  }

  /// The k-th of the sum's parts, and the n-th of the others.
  __device__ void load(std::uint32_t (&words)[4], int k, int n) const {
    const int down = kTransposed ? k : n;
    const int across = kTransposed ? n : k;
    load_matrices<kTransposed>(words, rows_[across % 4] + (down * 16 * W + across / 4 * 64));
  }

 private:
  // The lane's row of the parts in 64 columns. All others are so many bytes away, which an
  // instruction holds; addresses of their own would take all registers there are.
  const T* rows_[4];
};

/// Calls function(k, n, words) for all parts of a right operand. Each is loaded two calls ahead, so
/// that the tensor cores need not wait for it.
template <int kDepth, int kParts, typename Right, typename Function>
__device__ void for_parts(const Right& right, const Function& function) {
  constexpr int kAhead = 2;
  constexpr int kCount = kDepth * kParts;
  std::uint32_t words[kAhead + 1][4];
#pragma unroll
  for (int i = 0; i < kCount + kAhead; ++i) {
    if (i < kCount) {
      right.load(words[i % (kAhead + 1)], i / kParts, i % kParts);
    }
    if (i >= kAhead) {
      const int ready = i - kAhead;
      function(ready / kParts, ready % kParts, words[ready % (kAhead + 1)]);
    }
  }
}

template <typename T, int W>
__device__ Rows<W> load_rows(const T* tile, int first_row) {
  const Operand<true, false, T, W> operand(tile + first_row * W);
  Rows<W> rows;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    operand.load(rows.word[k], k, 0);
  }
  return rows;
}

/// rows · weightsᵀ, as the forward pass has it, or rows · weights, as the backward pass does.
template <bool kBackward, typename T, int W>
__device__ Sums<W> multiply(const Rows<W>& rows, const T* weights) {
  Sums<W> sums;
  for_parts<W / 16, W / 16>(Operand<false, kBackward, T, W>(weights),
                            [&](int k, int n, const std::uint32_t (&b)[4]) {
                              multiply_add<T>(sums.value[2 * n], rows.word[k], b[0], b[1]);
                              multiply_add<T>(sums.value[2 * n + 1], rows.word[k], b[2], b[3]);
                            });
  return sums;
}

/// sums += left · right, of 32 × 16 · kDepth and 16 · kDepth × C numbers.
template <int kDepth, int C, bool kLeftTransposed, bool kRightTransposed, typename T, int W>
__device__ void add_product(Sums<C> (&sums)[2], const Operand<true, kLeftTransposed, T, W>& left,
                            const Operand<false, kRightTransposed, T, W>& right) {
  std::uint32_t a[2][2][4];  // of this part of the sum and the next one
  const auto load_left = [&](int k) {
    left.load(a[k % 2][0], k, 0);
    left.load(a[k % 2][1], k, 1);
  };
  load_left(0);
  for_parts<kDepth, C / 16>(right, [&](int k, int n, const std::uint32_t (&b)[4]) {
    if (n == 0 && k + 1 < kDepth) {
      load_left(k + 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_add<T>(sums[i].value[2 * n], a[k % 2][i], b[0], b[1]);
      multiply_add<T>(sums[i].value[2 * n + 1], a[k % 2][i], b[2], b[3]);
    }
  });
}

// NaN stays NaN, as with PyTorch, and with ReLU its gradient passes.

/// Applies function(value) to all sums.
template <int W, typename Function>
__device__ void for_each(Sums<W>& sums, const Function& function) {
#pragma unroll
  for (int j = 0; j < W / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.value[j][i] = function(sums.value[j][i]);
    }
  }
}

template <int W>
__device__ void activate(Sums<W>& sums, MlpActivation activation) {
  if (activation == MlpActivation::kRelu) {
    for_each(sums, [](float value) { return value < 0 ? 0 : value; });
  } else {
    for_each(sums, [](float value) { return 1 - __fdividef(2, 1 + __expf(2 * value)); });
  }
}

/// Multiplies by the activation's derivative, from what the activation gave: of the tile's rows
/// these lanes' own words, which they have stored there themselves.
template <typename T, int W>
__device__ void multiply_by_derivative(Sums<W>& sums, T* activated, int first_row,
                                       MlpActivation activation) {
  const auto for_words = [&](const auto& function) {
#pragma unroll
    for (int k = 0; k < W / 16; ++k) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float2 pair = unpack<T>(*word_of<T, W>(activated, first_row, k, part));
        auto& value = sums.value[2 * k + part / 2];
        value[part % 2 * 2] = function(value[part % 2 * 2], pair.x);
        value[part % 2 * 2 + 1] = function(value[part % 2 * 2 + 1], pair.y);
      }
    }
  };
  if (activation == MlpActivation::kRelu) {
    for_words([](float gradient, float y) { return y <= 0 ? 0 : gradient; });
  } else {
    for_words([](float gradient, float y) { return gradient * (1 - y * y); });
  }
}

}  // namespace convtime::mlp
