#pragma once

#include "kernels/mlp/mlp.h"
#include "kernels/mlp/tensor_cores.cuh"

// A warp takes 16 rows of the batch through the layers. What comes out of one product is, in its
// registers, laid out as the next product wants its left operand: nothing is exchanged between
// warps, and the right operands, the weights, are all that is read.

namespace convtime::mlp {

constexpr int kWarpRows = 16;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

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

/// Calls function(value, row, column) for a lane's part of the sums, a pair of columns at a time.
template <int W, typename Function>
__device__ void for_pairs(Sums<W>& sums, const Function& function) {
  const int row = lane_id() / 4;
  const int column = lane_id() % 4 * 2;
#pragma unroll
  for (int j = 0; j < W / 8; ++j) {
    function(sums.value[j][0], sums.value[j][1], row, 8 * j + column);
    function(sums.value[j][2], sums.value[j][3], row + 8, 8 * j + column);
  }
}

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
  const int row = first_row + lane_id() / 4 + part % 2 * 8;
  return reinterpret_cast<std::uint32_t*>(tile + tile_offset<W>(row, 2 * k + part / 2)) +
         lane_id() % 4;
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

template <typename T, int W>
__device__ Rows<W> load_rows(const T* tile, int first_row) {
  const int matrix = lane_id() / 8;
  const int row = first_row + lane_id() % 8 + matrix % 2 * 8;
  Rows<W> rows;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    load_matrices<false>(rows.word[k], tile + tile_offset<W>(row, 2 * k + matrix / 2));
  }
  return rows;
}

/// rows · weightsᵀ, as the forward pass has it, or rows · weights, as the backward pass does.
template <bool kBackward, typename T, int W>
__device__ Sums<W> multiply(const Rows<W>& rows, const T* weights) {
  const int matrix = lane_id() / 8;
  const int row = lane_id() % 8 + (kBackward ? matrix % 2 : matrix / 2) * 8;
  const int chunk = kBackward ? matrix / 2 : matrix % 2;
  Sums<W> sums;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      const int down = kBackward ? k : n;  // in the matrix of weights
      const int across = kBackward ? n : k;
      std::uint32_t b[4];
      load_matrices<kBackward>(b, weights + tile_offset<W>(16 * down + row, (2 * across) ^ chunk));
      multiply_add<T>(sums.value[2 * n], rows.word[k], b[0], b[1]);
      multiply_add<T>(sums.value[2 * n + 1], rows.word[k], b[2], b[3]);
    }
  }
  return sums;
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
