#pragma once

#include "kernels/mlp/tensor_cores.cuh"
#include "kernels/mlp/training.h"

// A warp takes 16 rows of the batch through the layers. The result of each product is already in
// the register layout of the next product's left operand. Warps therefore exchange nothing, and
// only read the right operands, the weights.

namespace convtime::mlp {

constexpr int kWarpRows = 16;

inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }

/// Return the offset of the eight elements at column 8 · chunk in a tile of W columns. The 16-byte
/// chunks are swizzled by the row, or by the line of 128 bytes if that holds several rows, so that
/// eight rows of one chunk, and eight chunks of a line, cover all 32 banks. The swizzle is the same
/// eight rows further on.
template <int W>
int tile_offset(int row, int chunk) {
  constexpr int kChunks = W < 64 ? W / 8 : 8;  // of a line and a row
  constexpr int kLineRows = 8 / kChunks;
  // The group of chunks is a compile-time constant, so that it takes no register.
  return row * W + (chunk / kChunks * kChunks + ((chunk ^ (row / kLineRows)) & (kChunks - 1))) * 8;
}

/// Sums of 16 rows × W columns. Lane 4 g + t has rows g and g + 8. Its value[j] has columns 8 j + 2
/// t and 8 j + 2 t + 1: two values of row g, then two of row g + 8.
template <int W>
struct Sums {
  float value[W / 8][4] = {};
};

/// 16 rows × W columns of 16-bit values as a left operand; each k has two Sums of eight columns.
template <int W>
struct Rows {
  std::uint32_t word[W / 16][4];
};

template <typename T, int W>
Rows<W> round_rows(const Sums<W>& sums) {
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

/// Return the address of rows.word[k][part] in a tile.
template <typename T, int W>
std::uint32_t* word_of(T* tile, int first_row, int k, int part) {
  T* const row = tile + tile_offset<W>(first_row + lane_id() / 4, 2 * k + part / 2);
  return reinterpret_cast<std::uint32_t*>(row + part % 2 * 8 * W) + lane_id() % 4;
}

template <typename T, int W>
void store_rows(T* tile, int first_row, const Rows<W>& rows) {
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      *word_of<T, W>(tile, first_row, k, part) = rows.word[k][part];
    }
  }
}

/// One operand of a product, in a tile of W columns, which the tensor cores read in parts of 16 ×
/// 16 values. The product sums over the tile's rows if transposed, otherwise over its columns.
template <bool kLeft, bool kTransposed, typename T, int W>
class Operand {
 public:
  /// Select the tile's columns from 16 · first on.
  explicit Operand(const T* tile, int first = 0) {
    // The second of the four 8 × 8 matrices is below the first or to its right.
    const int matrix = lane_id() / 8;
    const int below = kLeft != kTransposed ? matrix % 2 : matrix / 2;
    const int right = kLeft != kTransposed ? matrix / 2 : matrix % 2;
    const int row = lane_id() % 8 + 8 * below;
#pragma unroll
    for (int i = 0; i < kAddresses; ++i) {
      rows_[i] = tile + tile_offset<W>(row, 2 * (first + i) + right);
    }
  }

  /// Load part k along the summed dimension and part n along the other.
  void load(std::uint32_t (&words)[4], int k, int n) const {
    const int down = kTransposed ? k : n;
    const int across = kTransposed ? n : k;
    load_matrices<kTransposed>(
        words, rows_[across % kAddresses] + (down * 16 * W + across / kAddresses * 64));
  }

 private:
  // The lane's rows in the parts of 64 columns, or of all. All other parts are at constant offsets,
  // which fit in an instruction; separate addresses would take all registers.
  static constexpr int kAddresses = W < 64 ? W / 16 : 4;
  const T* rows_[kAddresses];
};

/// Call function(k, n, words) for all parts of a right operand. Each is loaded two calls ahead, so
/// that the tensor cores do not wait for it.
template <int kDepth, int kParts, typename Right, typename Function>
void for_parts(const Right& right, const Function& function) {
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
Rows<W> load_rows(const T* tile, int first_row) {
  const Operand<true, false, T, W> operand(tile + first_row * W);
  Rows<W> rows;
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    operand.load(rows.word[k], k, 0);
  }
  return rows;
}

/// Return rows · weightsᵀ for the forward pass, or rows · weights for the backward pass.
template <bool kBackward, typename T, int W>
Sums<W> multiply(const Rows<W>& rows, const T* weights) {
  Sums<W> sums;
  for_parts<W / 16, W / 16>(Operand<false, kBackward, T, W>(weights),
                            [&](int k, int n, const std::uint32_t (&b)[4]) {
                              multiply_add<T>(sums.value[2 * n], rows.word[k], b[0], b[1]);
                              multiply_add<T>(sums.value[2 * n + 1], rows.word[k], b[2], b[3]);
                            });
  return sums;
}

/// Compute sums += left · right, with shapes 16 · kParts × 16 · kDepth and 16 · kDepth × C.
template <int kDepth, int C, int kParts, bool kLeftTransposed, bool kRightTransposed, typename T,
          int W>
void add_product(Sums<C> (&sums)[kParts], const Operand<true, kLeftTransposed, T, W>& left,
                 const Operand<false, kRightTransposed, T, W>& right) {
  std::uint32_t a[2][kParts][4];  // for this part of the sum and the next one
  const auto load_left = [&](int k) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      left.load(a[k % 2][i], k, i);
    }
  };
  load_left(0);
  for_parts<kDepth, C / 16>(right, [&](int k, int n, const std::uint32_t (&b)[4]) {
    if (n == 0 && k + 1 < kDepth) {
      load_left(k + 1);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      multiply_add<T>(sums[i].value[2 * n], a[k % 2][i], b[0], b[1]);
      multiply_add<T>(sums[i].value[2 * n + 1], a[k % 2][i], b[2], b[3]);
    }
  });
}

// NaN stays NaN, as in PyTorch, and passes its gradient through ReLU.

/// Apply function(value) to all sums.
template <int W, typename Function>
void for_each(Sums<W>& sums, const Function& function) {
#pragma unroll
  for (int j = 0; j < W / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.value[j][i] = function(sums.value[j][i]);
    }
  }
}

template <MlpActivation kActivation, int W>
void activate(Sums<W>& sums) {
  if constexpr (kActivation == MlpActivation::kRelu) {
    for_each(sums, [](float value) { return value < 0 ? 0 : value; });
  } else {
    for_each(sums, [](float value) { return 1 - __fdividef(2, 1 + __expf(2 * value)); });
  }
}

/// Return a gradient times the activation's derivative, computed from the activation's output y.
template <MlpActivation kActivation>
float differentiated(float gradient, float y) {
  if constexpr (kActivation == MlpActivation::kRelu) {
    return y <= 0 ? 0 : gradient;
  } else {
    return gradient * (1 - y * y);
  }
}

/// Multiply by the activation's derivative. Each lane reads only the words of the tile that it
/// stored itself.
template <MlpActivation kActivation, typename T, int W>
void multiply_by_derivative(Sums<W>& sums, T* activated, int first_row) {
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float2 y = unpack<T>(*word_of<T, W>(activated, first_row, k, part));
      float* const pair = sums.value[2 * k + part / 2] + part % 2 * 2;
      pair[0] = differentiated<kActivation>(pair[0], y.x);
      pair[1] = differentiated<kActivation>(pair[1], y.y);
    }
  }
}

}  // namespace convtime::mlp
