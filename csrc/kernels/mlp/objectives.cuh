#pragma once

#include "kernels/mlp/step.cuh"

// Use of the outputs: they are stored, or replaced by the gradient of their loss. In the second
// case, the sum of the loss over a lane's part is returned.

namespace convtime::mlp {

/// A lane's part of 16 rows, in the layout of Sums: two adjacent values in each of its two rows.
template <int W>
struct Pairs {
  std::uint32_t word[W / 8][2];
};

template <typename T>
std::uint32_t bits_of(const T& number) {
  return reinterpret_cast<const std::uint16_t&>(number);
}

// A lane's columns are counted from its first column. Each is then a compile-time constant, where
// an absolute column would take a register.

/// Return the lane's first column; its j-th pair starts 8 · j columns further on.
inline int lane_column() { return lane_id() % 4 * 2; }

/// Return the lane's first or second row.
inline std::int64_t lane_row(std::int64_t first_row, int half) {
  return first_row + lane_id() / 4 + 8 * half;
}

/// Load pairs from dense rows with step.outputs columns, padded with zeros. All loads are in flight
/// at once, because serial loads would each expose their latency.
template <typename T, int W, typename Kind>
Pairs<W> load_pairs(const Step<T, Kind>& step, const T* rows, std::int64_t first_row) {
  Pairs<W> pairs;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = lane_row(first_row, half);
    const int columns = row < step.batch ? step.outputs - lane_column() : 0;  // columns that remain
    const T* const from = rows + row * step.outputs + lane_column();
    if constexpr (Kind::kTargetLanes > 1) {
#pragma unroll
      for (int j = 0; j < W / 8; ++j) {
        pairs.word[j][half] =
            8 * j < columns ? *reinterpret_cast<const std::uint32_t*>(from + 8 * j) : 0;
      }
    } else {
#pragma unroll
      for (int j = 0; j < W / 8; ++j) {
        const std::uint32_t first = 8 * j < columns ? bits_of(from[8 * j]) : 0;
        const std::uint32_t second = 8 * j + 1 < columns ? bits_of(from[8 * j + 1]) : 0;
        pairs.word[j][half] = first | second << 16;
      }
    }
  }
  return pairs;
}

/// Return the sum of squared differences.
template <typename T, int W, typename Kind>
float squared_error(Sums<W>& outputs, const Step<T, Kind>& step, const Pairs<W>& targets,
                    std::int64_t first_row, float scale) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool is_there = lane_row(first_row, half) < step.batch;
    const int columns = is_there ? step.outputs - lane_column() : 0;  // columns that remain
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
      float& first = outputs.value[j][2 * half];
      float& second = outputs.value[j][2 * half + 1];
      const float2 target = unpack<T>(targets.word[j][half]);
      const float e0 = 8 * j < columns ? first - target.x : 0;
      const float e1 = 8 * j + 1 < columns ? second - target.y : 0;
      loss += e0 * e0 + e1 * e1;
      first = 2 * scale * e0;
      second = 2 * scale * e1;
    }
  }
  return loss;
}

/// Reduce over the four lanes that share a row.
inline float sum_of_row(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
inline float max_of_row(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

/// Return the negative logarithm of the target class's softmax.
template <typename T, int W, typename Kind>
float cross_entropy(Sums<W>& outputs, const Step<T, Kind>& step, const std::int64_t* classes,
                    std::int64_t first_row, float scale) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = lane_row(first_row, half);
    const int columns = step.outputs - lane_column();  // columns that remain
    const bool is_there = row < step.batch;
    const int target = (is_there ? static_cast<int>(classes[row]) : 0) - lane_column();
    float highest = __int_as_float(0xff800000);  // negative infinity
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * j + i < columns) {
          highest = fmaxf(highest, outputs.value[j][2 * half + i]);
        }
      }
    }
    highest = max_of_row(highest);
    float sum = 0;
    float of_target = 0;
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& value = outputs.value[j][2 * half + i];
        const float logit = value - highest;
        of_target += 8 * j + i == target ? logit : 0;
        value = 8 * j + i < columns ? __expf(logit) : 0;
        sum += value;
      }
    }
    sum = sum_of_row(sum);
    of_target = sum_of_row(of_target);
    loss += is_there && lane_column() == 0 ? logf(sum) - of_target : 0;
    const float inverse = 1 / sum;
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& value = outputs.value[j][2 * half + i];
        const float expected = 8 * j + i == target ? 1 : 0;
        value = is_there ? scale * (value * inverse - expected) : 0;
      }
    }
  }
  return loss;
}

template <typename T, int W>
void take_gradient(Sums<W>& outputs, const Pairs<W>& gradient) {
#pragma unroll
  for (int j = 0; j < W / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = unpack<T>(gradient.word[j][half]);
      outputs.value[j][2 * half] = pair.x;
      outputs.value[j][2 * half + 1] = pair.y;
    }
  }
}

/// Write results with `columns` columns, for the rows that are in the batch.
template <typename T, int W, typename Kind>
void store_results(const Sums<W>& sums, const Step<T, Kind>& step, std::int64_t first_row,
                   int columns) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = lane_row(first_row, half);
    const int left = row < step.batch ? columns - lane_column() : 0;
    T* const to = step.results + row * columns + lane_column();
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * j + i < left) {
          to[8 * j + i] = T(sums.value[j][2 * half + i]);
        }
      }
    }
  }
}

/// Replace a warp's 16 rows of outputs by their gradient; return the lane's share of their loss.
/// load_targets() returns the lane's targets, unless they are classes.
template <typename T, int W, typename LoadTargets, typename Kind>
float differentiate(Sums<W>& outputs, const Step<T, Kind>& step, const Batch<T>& batch,
                    std::int64_t first_row, float scale, const LoadTargets& load_targets) {
  if constexpr (Kind::kObjective == Objective::kMse) {
    return squared_error(outputs, step, load_targets(), first_row, scale);
  } else if constexpr (Kind::kObjective == Objective::kCrossEntropy) {
    const auto* const classes = static_cast<const std::int64_t*>(batch.targets);
    return cross_entropy(outputs, step, classes, first_row, scale);
  } else if constexpr (Kind::kObjective == Objective::kGradient) {
    take_gradient<T>(outputs, load_targets());
  } else {
    store_results(outputs, step, first_row, step.outputs);
  }
  return 0;
}

}  // namespace convtime::mlp
