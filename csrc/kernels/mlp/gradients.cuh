#pragma once

#include "kernels/mlp/learning.cuh"
#include "kernels/mlp/rows.cuh"

// Gradients of the weights: products over the rows of a tile. Each warp computes a unit: 32 × 64
// weights, or of a narrower net 16 rows of a layer.

namespace convtime::mlp {

/// Gradients are kept in the layout of the tensor cores' output, so that warps read and write them
/// contiguously: four values per lane, block of 8 columns, part of 16 rows and unit.
template <int W>
struct Place {
  static constexpr int kUnitRows = W < 64 ? 16 : 32;
  static constexpr int kUnitColumns = W < 64 ? W : 64;
  static constexpr int kParts = kUnitRows / 16;                      // per unit
  static constexpr int kBlocks = kUnitColumns / 8;                   // per part
  static constexpr int kUnits = W / kUnitRows * (W / kUnitColumns);  // per layer
  static constexpr int kSize = kUnitRows * kUnitColumns / 4;         // per unit, in groups of four

  /// Return the offset of the first two of four values in the weights; the other two are eight rows
  /// below.
  static std::size_t offset(int place) {
    const int lane = place % 32;
    const int column = place / 32 % kBlocks * 8 + lane % 4 * 2;
    const int row = place / (32 * kBlocks) % kParts * 16 + lane / 4;
    const int unit = place / kSize;
    const int left = unit % (W / kUnitColumns) * kUnitColumns;
    const int top = unit / (W / kUnitColumns) * kUnitRows;  // counted from the first layer's first
                                                            // row
    return static_cast<std::size_t>(top + row) * W + left + column;
  }
};

/// A unit in a warp's registers.
template <int W>
struct Unit {
  Sums<Place<W>::kUnitColumns> part[Place<W>::kParts];  // 16 rows each
};

/// Load the sums of earlier tiles, or zeros.
template <int W>
Unit<W> load_unit(const float4* from, bool is_first) {
  constexpr int kBlocks = Place<W>::kBlocks;
  Unit<W> unit;
#pragma unroll
  for (int i = 0; i < Place<W>::kParts; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float4 four = is_first ? float4{} : from[(kBlocks * i + j) * 32 + lane_id()];
      auto& value = unit.part[i].value[j];
      value[0] = four.x;
      value[1] = four.y;
      value[2] = four.z;
      value[3] = four.w;
    }
  }
  return unit;
}

/// Store a unit and return whether all values are finite.
template <int W>
bool store_unit(float4* to, const Unit<W>& unit) {
  constexpr int kBlocks = Place<W>::kBlocks;
  float check = 0;
#pragma unroll
  for (int i = 0; i < Place<W>::kParts; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const auto& four = unit.part[i].value[j];
      to[(kBlocks * i + j) * 32 + lane_id()] = make_float4(four[0], four[1], four[2], four[3]);
      check += 0 * four[0] + 0 * four[1] + 0 * four[2] + 0 * four[3];  // NaN unless all are finite
    }
  }
  return check == 0;
}

/// Add deltasᵀ · inputs over `rows` rows of two tiles, a multiple of kRows, to the unit with that
/// number within a layer.
template <typename T, int W, int kRows>
void add_products(Unit<W>& unit, const T* deltas, const T* inputs, int rows, int number) {
  constexpr int kAcross = W / Place<W>::kUnitColumns;
  const int top = number / kAcross * Place<W>::kParts;
  const int left = number % kAcross * (Place<W>::kUnitColumns / 16);
  for (int row = 0; row < rows; row += kRows) {
    add_product<kRows / 16>(unit.part, Operand<true, true, T, W>(deltas + row * W, top),
                            Operand<false, true, T, W>(inputs + row * W, left));
  }
}

inline void add(float4& sum, const float4& more) {
  sum.x += more.x;
  sum.y += more.y;
  sum.z += more.z;
  sum.w += more.w;
}

/// Return the sum of read(i) from `first` on, `stride` apart, in that order. Several reads are
/// in flight at once, because serial reads would each expose their latency.
template <int kAhead, typename Read>
float4 sum_of(int first, int end, int stride, const Read& read) {
  float4 sum{};
  for (int i = first; i < end; i += kAhead * stride) {
    float4 ahead[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      ahead[j] = i + j * stride < end ? read(i + j * stride) : float4{};
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      add(sum, ahead[j]);
    }
  }
  return sum;
}

/// The stored state of a place's four weights: two neighbors, and the two eight rows below.
struct KeptPlace {
  Kept upper;
  Kept lower;
};

template <typename T, int W, typename Stored>
KeptPlace read_place(const Learning& learning, int place) {
  const std::size_t offset = Place<W>::offset(place);
  return {read_kept<T, Stored>(learning, offset), read_kept<T, Stored>(learning, offset + 8 * W)};
}

template <typename T, int W, typename Stored, MlpOptimizer kOptimizer>
void update_place(const Learning& learning, const Factors& factors, int place,
                  const KeptPlace& kept, const float4& gradients) {
  const std::size_t offset = Place<W>::offset(place);
  update_kept<T, Stored, kOptimizer>(learning, factors, kept.upper, offset,
                                     {gradients.x, gradients.y});
  update_kept<T, Stored, kOptimizer>(learning, factors, kept.lower, offset + 8 * W,
                                     {gradients.z, gradients.w});
}

}  // namespace convtime::mlp
