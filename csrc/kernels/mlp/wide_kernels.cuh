#pragma once

#include "kernels/elements.cuh"
#include "kernels/mlp/learning.cuh"
#include "kernels/mlp/step.cuh"
#include "kernels/mlp/wide_arguments.h"

// The kernels of a wide net's training step between its products.

namespace convtime::mlp {

using elements::kLanes;
using elements::narrow;
using elements::Pack;
using elements::store;

/// Read memory that the kernel may write elsewhere.
template <typename P>
P read(const P* from) {
  const auto word = *reinterpret_cast<const elements::Word<P>*>(from);
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

inline std::int64_t first_row(const BatchChoice& choice, std::int64_t rows) {
  return choice.steps == nullptr ? 0 : *choice.steps % choice.batches * rows;
}

/// Call function(row) for the rows of a warp.
template <typename Function>
void for_rows(std::int64_t rows, const Function& function) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (std::int64_t row = warp; row < rows; row += std::int64_t{gridDim.x} * kWarps) {
    function(row);
  }
}

/// Call function(index) for the thread's share of `packs` packs.
template <typename Function>
void for_packs(std::int64_t packs, const Function& function) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kThreads) {
    function(i);
  }
}

// --- Copies

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const __grid_constant__ CopyArguments<T> a) {
  const T* const begin = a.from + first_row(a.choice, a.rows) * a.from_ld;
  for_rows(a.rows, [&](std::int64_t row) {
#pragma unroll 4
    for (int column = lane_id() * N; column < a.padded; column += 32 * N) {
      const bool is_there = column < a.columns;  // the whole pack or none
      const Pack<T, N> pack =
          is_there ? read(reinterpret_cast<const Pack<T, N>*>(begin + row * a.from_ld + column))
                   : Pack<T, N>{};
      store(reinterpret_cast<Pack<T, N>*>(a.to + row * a.to_ld + column), pack);
    }
  });
}

// --- Activations

// NaN stays NaN, as in PyTorch, and passes its gradient through ReLU.

template <typename T, MlpActivation kActivation>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(const __grid_constant__ ActivationArguments<T> a) {
  for_packs(a.packs, [&](std::int64_t i) {
    auto* const at = reinterpret_cast<elements::Vector<T>*>(a.values) + i;
    auto pack = read(at);
#pragma unroll
    for (T& value : pack.lane) {
      const float x = widen(value);
      if constexpr (kActivation == MlpActivation::kRelu) {
        value = narrow<T>(x < 0 ? 0 : x);
      } else {
        value = narrow<T>(tanhf(x));
      }
    }
    store(at, pack);
  });
}

template <typename T, MlpActivation kActivation>
__global__ void __launch_bounds__(kThreads)
    activation_backward_kernel(const __grid_constant__ ActivationArguments<T> a) {
  for_packs(a.packs, [&](std::int64_t i) {
    auto* const at = reinterpret_cast<elements::Vector<T>*>(a.values) + i;
    auto pack = read(at);
    const auto outputs = read(reinterpret_cast<const elements::Vector<T>*>(a.activated) + i);
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) {
      pack.lane[j] =
          narrow<T>(differentiated<kActivation>(widen(pack.lane[j]), widen(outputs.lane[j])));
    }
    store(at, pack);
  });
}

// --- Losses

inline float max_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}

/// Sum the blocks' sums in a fixed order, in the last block to arrive, and store the loss.
template <typename T>
void keep_sum(const LossArguments<T>& a, float loss) {
  __shared__ float of_warps[kWarps];
  __shared__ bool is_last;
  const float sum = sum_of_block(loss, of_warps);
  if (threadIdx.x == 0) {
    a.loss->partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicInc(&a.loss->arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) {
    return;
  }
  __threadfence();
  float total = 0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    total += __ldcg(a.loss->partial + block);
  }
  total = sum_of_block(total, of_warps);
  if (threadIdx.x == 0) {
    a.losses[*a.choice.steps % a.losses_kept] = total * a.factor;
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) mse_kernel(const __grid_constant__ LossArguments<T> a) {
  const float scale = 2 * a.factor * (a.scale == nullptr ? 1 : *a.scale);
  const T* const targets =
      static_cast<const T*>(a.targets) + first_row(a.choice, a.rows) * a.columns;
  float loss = 0;
  for_rows(a.rows, [&](std::int64_t row) {
#pragma unroll 4
    for (int column = lane_id() * N; column < a.padded; column += 32 * N) {
      auto* const at = reinterpret_cast<Pack<T, N>*>(a.outputs + row * a.ld + column);
      Pack<T, N> gradients{};
      if (column < a.columns) {  // the whole pack or none
        const Pack<T, N> outputs = read(at);
        const Pack<T, N> expected =
            elements::load(reinterpret_cast<const Pack<T, N>*>(targets + row * a.columns + column));
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float error = widen(outputs.lane[i]) - widen(expected.lane[i]);
          loss += error * error;
          gradients.lane[i] = narrow<T>(scale * error);
        }
      }
      store(at, gradients);
    }
  });
  keep_sum(a, loss);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const __grid_constant__ LossArguments<T> a) {
  const float scale = a.factor * (a.scale == nullptr ? 1 : *a.scale);
  const std::int64_t* const classes =
      static_cast<const std::int64_t*>(a.targets) + first_row(a.choice, a.rows);
  float loss = 0;
  for_rows(a.rows, [&](std::int64_t row) {
    T* const outputs = a.outputs + row * a.ld;
    const auto target = static_cast<int>(classes[row]);
    float highest = __int_as_float(0xff800000);  // negative infinity
    for (int column = lane_id(); column < a.columns; column += 32) {
      highest = fmaxf(highest, widen(outputs[column]));
    }
    highest = max_of_warp(highest);
    float sum = 0;
    float of_target = 0;
    for (int column = lane_id(); column < a.columns; column += 32) {
      const float logit = widen(outputs[column]) - highest;
      of_target += column == target ? logit : 0;
      sum += expf(logit);
    }
    sum = sum_of_warp(sum);
    of_target = sum_of_warp(of_target);
    loss += lane_id() == 0 ? logf(sum) - of_target : 0;
    for (int column = lane_id(); column < a.padded; column += 32) {
      const bool is_there = column < a.columns;
      const float share = is_there ? expf(widen(outputs[column]) - highest) / sum : 0;
      outputs[column] = narrow<T>(is_there ? scale * (share - (column == target ? 1 : 0)) : 0);
    }
  });
  keep_sum(a, loss);
}

// --- Biases

/// A block sums some columns of a layer; its threads alternate over the rows, with one pack each.
template <typename T, typename Stored>
__global__ void __launch_bounds__(kBiasThreads)
    bias_kernel(const __grid_constant__ BiasArguments<T, Stored> a) {
  constexpr int kN = kLanes<T>;
  constexpr int kPacks = kBiasColumns / kN;
  constexpr int kTurns = kBiasThreads / kPacks;
  __shared__ float sums[kTurns][kBiasColumns];
  const int layer = static_cast<int>(blockIdx.y);
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  const int turn = static_cast<int>(threadIdx.x) / kPacks;
  const int column = static_cast<int>(blockIdx.x) * kBiasColumns + pack * kN;
  const int columns = layer == a.layers - 1 ? a.last_columns : a.width;
  float sum[kN] = {};
  if (column < columns) {
    const T* const from = a.deltas + layer * a.rows * a.width + column;
#pragma unroll 8
    for (std::int64_t row = turn; row < a.rows; row += kTurns) {
      const auto values =
          elements::load(reinterpret_cast<const elements::Vector<T>*>(from + row * a.width));
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        sum[i] += widen(values.lane[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    sums[turn][pack * kN + i] = sum[i];
  }
  __syncthreads();
  const int own = static_cast<int>(blockIdx.x) * kBiasColumns + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kBiasColumns && own < columns) {
    float total = 0;
    for (int t = 0; t < kTurns; ++t) {
      total += sums[t][threadIdx.x];
    }
    const std::int64_t layer_size = (std::int64_t{a.width} + 1) * a.width;
    a.gradients[layer * layer_size + std::int64_t{a.width} * a.width + own] = narrow<Stored>(total);
  }
}

// --- The optimizer

template <typename Stored>
__global__ void __launch_bounds__(kThreads)
    find_overflow_kernel(const __grid_constant__ LearnArguments<Stored> a) {
  float check = 0;
  for_packs(a.packs, [&](std::int64_t i) {
    const auto pack =
        elements::load(reinterpret_cast<const elements::Vector<Stored>*>(a.gradients) + i);
#pragma unroll
    for (const Stored& gradient : pack.lane) {
      check += 0 * widen(gradient);  // NaN unless all are finite
    }
  });
  if (check != 0) {
    atomicOr(&a.loss->overflowed, 1U);
  }
}

template <typename T, typename Stored, MlpOptimizer kOptimizer>
__global__ void __launch_bounds__(kThreads)
    learn_flat_kernel(const __grid_constant__ LearnArguments<Stored> a) {
  constexpr int kN = kLanes<Stored>;
  constexpr bool kHasCopy = !std::is_same_v<T, Stored>;
  const Learning& learning = a.learning;
  using Packed = Pack<Stored, kN>;
  Progress progress = read_progress(learning);
  const bool skipped = learning.scaling.enabled && a.loss->overflowed != 0;
  T* const copy = static_cast<T*>(learning.weights);
  Stored* const weights = stored_weights<T, Stored>(learning);
  auto* const firsts = static_cast<Stored*>(learning.first);
  auto* const seconds = static_cast<Stored*>(learning.second);
  if (!skipped) {
    const Factors factors = factors_of<kOptimizer>(learning.rule, progress);
    for_packs(a.packs, [&](std::int64_t i) {
      const Packed gradient = elements::load(reinterpret_cast<const Packed*>(a.gradients) + i);
      Packed weight = read(reinterpret_cast<const Packed*>(weights) + i);
      Packed first{};
      Packed second{};
      if (firsts != nullptr) {
        first = read(reinterpret_cast<const Packed*>(firsts) + i);
      }
      if (seconds != nullptr) {
        second = read(reinterpret_cast<const Packed*>(seconds) + i);
      }
      Pack<T, kN> rounded;
      if constexpr (kHasCopy) {
        rounded = read(reinterpret_cast<const Pack<T, kN>*>(copy) + i);
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        float first_moment = widen(first.lane[j]);
        float second_moment = widen(second.lane[j]);
        float old = widen(weight.lane[j]);
        if constexpr (kHasCopy) {
          old = current_weight(old, widen(narrow<T>(old)), widen(rounded.lane[j]));
        }
        const float updated = update<kOptimizer>(
            learning.rule, factors, old, widen(gradient.lane[j]), first_moment, second_moment);
        weight.lane[j] = narrow<Stored>(updated);
        first.lane[j] = narrow<Stored>(first_moment);
        second.lane[j] = narrow<Stored>(second_moment);
        rounded.lane[j] = narrow<T>(updated);
      }
      store(reinterpret_cast<Packed*>(weights) + i, weight);
      if (firsts != nullptr) {
        store(reinterpret_cast<Packed*>(firsts) + i, first);
      }
      if (seconds != nullptr) {
        store(reinterpret_cast<Packed*>(seconds) + i, second);
      }
      if constexpr (kHasCopy) {
        store(reinterpret_cast<Pack<T, kN>*>(copy) + i, rounded);
      }
    });
  }
  __threadfence();
  __syncthreads();  // all blocks have read the values that the last block changes
  if (threadIdx.x == 0 && atomicInc(&a.loss->learners_arrived, gridDim.x - 1) == gridDim.x - 1) {
    advance(progress, learning.scaling, skipped);
    write_progress(learning, progress);
    a.loss->overflowed = 0;
  }
}

}  // namespace convtime::mlp
