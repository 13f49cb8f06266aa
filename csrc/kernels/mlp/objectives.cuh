#pragma once

#include "kernels/mlp/step.cuh"

// What is done with the outputs: they become the gradient of their loss, of which the sum over a
// lane's part is returned, or are stored.

namespace convtime::mlp {

/// Two neighbours of a row of `columns` numbers, with zero for what is beyond its end.
template <typename T>
__device__ float2 load_pair(const T* rows, std::int64_t row, int column, int columns,
                            bool as_pairs) {
  const T* const from = rows + row * columns + column;
  if (as_pairs) {
    return column < columns ? read_pair(from) : float2{};
  }
  return {column < columns ? static_cast<float>(from[0]) : 0.0F,
          column + 1 < columns ? static_cast<float>(from[1]) : 0.0F};
}

template <typename T>
__device__ void store_pair(T* rows, std::int64_t row, int column, int columns, float first,
                           float second) {
  T* const to = rows + row * columns + column;
  if (column < columns) {
    to[0] = T(first);
  }
  if (column + 1 < columns) {
    to[1] = T(second);
  }
}

/// Squares of the differences.
template <typename T, int W>
__device__ float squared_error(Sums<W>& outputs, const Step<T>& step, const T* targets,
                               std::int64_t first_row, float scale) {
  float loss = 0;
  for_pairs(outputs, [&](float& first, float& second, int row, int column) {
    const std::int64_t r = first_row + row;
    const bool is_there = r < step.batch;
    const float2 target =
        is_there ? load_pair(targets, r, column, step.outputs, step.pair_targets) : float2{};
    const float e0 = is_there && column < step.outputs ? first - target.x : 0;
    const float e1 = is_there && column + 1 < step.outputs ? second - target.y : 0;
    loss += e0 * e0 + e1 * e1;
    first = 2 * scale * e0;
    second = 2 * scale * e1;
  });
  return loss;
}

/// Over the four lanes that share a row.
__device__ inline float sum_of_row(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
__device__ inline float max_of_row(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

/// Negative logarithms of the target class's softmax.
template <typename T, int W>
__device__ float cross_entropy(Sums<W>& outputs, const Step<T>& step, const std::int64_t* classes,
                               std::int64_t first_row, float scale) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + lane_id() / 4 + 8 * half;
    const int column = lane_id() % 4 * 2;
    const bool is_there = row < step.batch;
    const auto target = static_cast<int>(is_there ? classes[row] : 0);
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (8 * j + column + i < step.outputs) {
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
        const int c = 8 * j + column + i;
        const float logit = value - highest;
        of_target += c == target ? logit : 0;
        value = c < step.outputs ? __expf(logit) : 0;
        sum += value;
      }
    }
    sum = sum_of_row(sum);
    of_target = sum_of_row(of_target);
    loss += is_there && column == 0 ? logf(sum) - of_target : 0;
#pragma unroll
    for (int j = 0; j < W / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& value = outputs.value[j][2 * half + i];
        const float expected = 8 * j + column + i == target ? 1 : 0;
        value = is_there ? scale * (value / sum - expected) : 0;
      }
    }
  }
  return loss;
}

template <typename T, int W>
__device__ void take_gradient(Sums<W>& outputs, const Step<T>& step, const T* gradient,
                              std::int64_t first_row) {
  for_pairs(outputs, [&](float& first, float& second, int row, int column) {
    const std::int64_t r = first_row + row;
    const float2 pair =
        r < step.batch ? load_pair(gradient, r, column, step.outputs, step.pair_targets) : float2{};
    first = pair.x;
    second = pair.y;
  });
}

/// Writes results of so many columns, of rows that are in the batch.
template <typename T, int W>
__device__ void store_results(Sums<W>& sums, const Step<T>& step, std::int64_t first_row,
                              int columns) {
  for_pairs(sums, [&](float first, float second, int row, int column) {
    if (first_row + row < step.batch) {
      store_pair(step.results, first_row + row, column, columns, first, second);
    }
  });
}

/// Has a warp's 16 rows of outputs become their gradient; returns what the lane has of their loss.
template <typename T, int W>
__device__ float differentiate(Sums<W>& outputs, const Step<T>& step, const Batch<T>& batch,
                               std::int64_t first_row, float scale) {
  switch (step.objective) {
    case Objective::kMse:
      return squared_error(outputs, step, static_cast<const T*>(batch.targets), first_row, scale);
    case Objective::kCrossEntropy:
      return cross_entropy(outputs, step, static_cast<const std::int64_t*>(batch.targets),
                           first_row, scale);
    case Objective::kGradient:
      take_gradient(outputs, step, static_cast<const T*>(batch.targets), first_row);
      return 0;
    case Objective::kNone:
      store_results(outputs, step, first_row, step.outputs);
      return 0;
  }
  return 0;
}

}  // namespace convtime::mlp
