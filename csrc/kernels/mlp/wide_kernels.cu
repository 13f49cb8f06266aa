#include "kernels/mlp/wide_kernels.h"

#include <algorithm>

#include "core/cuda_check.h"
#include "kernels/elements.cuh"
#include "kernels/mlp/learning.cuh"

namespace convtime::mlp {
namespace {

using elements::is_aligned;
using elements::kLanes;
using elements::narrow;
using elements::Pack;
using elements::store;
using elements::widen;

constexpr int kBlockThreads = 256;
constexpr int kBlockWarps = kBlockThreads / 32;
constexpr std::int64_t kMostBlocks = 2048;

/// Call function(T()) for a net's type.
template <typename Function>
void for_type(ElementType type, const Function& function) {
  switch (type) {
    case ElementType::kHalf:
      return function(__half());
    case ElementType::kBFloat16:
      return function(__nv_bfloat16());
    default:
      return function(float());
  }
}

/// Call function(std::integral_constant<int, N>()) for the number of elements that can be read at
/// once.
template <typename T, typename Function>
void for_lanes(bool in_vectors, const Function& function) {
  if (in_vectors) {
    function(std::integral_constant<int, kLanes<T>>());
  } else {
    function(std::integral_constant<int, 1>());
  }
}

unsigned blocks_for(std::int64_t count, std::int64_t of_block, std::int64_t most) {
  return static_cast<unsigned>(std::min((count + of_block - 1) / of_block, most));
}

/// Read memory that the kernel may write elsewhere.
template <typename P>
__device__ P read(const P* from) {
  const auto word = *reinterpret_cast<const elements::Word<P>*>(from);
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

__device__ std::int64_t first_row(const BatchChoice& choice, std::int64_t rows) {
  return choice.steps == nullptr ? 0 : *choice.steps % choice.batches * rows;
}

/// Call function(row) for the rows of a warp.
template <typename Function>
__device__ void for_rows(std::int64_t rows, const Function& function) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / 32;
  for (std::int64_t row = warp; row < rows; row += std::int64_t{gridDim.x} * kBlockWarps) {
    function(row);
  }
}

/// Call function(index) for the thread's share of `packs` packs.
template <typename Function>
__device__ void for_packs(std::int64_t packs, const Function& function) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kBlockThreads) {
    function(i);
  }
}

__device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// --- Copies

template <typename T, int N>
__global__ void __launch_bounds__(kBlockThreads)
    copy_rows_kernel(const T* from, std::int64_t from_ld, T* to, std::int64_t to_ld, int columns,
                     int padded, std::int64_t rows, BatchChoice choice) {
  from += first_row(choice, rows) * from_ld;
  for_rows(rows, [&](std::int64_t row) {
#pragma unroll 4
    for (int column = lane() * N; column < padded; column += 32 * N) {
      const bool is_there = column < columns;  // the whole pack or none
      const Pack<T, N> pack =
          is_there ? read(reinterpret_cast<const Pack<T, N>*>(from + row * from_ld + column))
                   : Pack<T, N>{};
      store(reinterpret_cast<Pack<T, N>*>(to + row * to_ld + column), pack);
    }
  });
}

// --- Activations

// NaN stays NaN, as in PyTorch, and passes its gradient through ReLU.

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    activation_kernel(MlpActivation activation, T* values, std::int64_t packs) {
  for_packs(packs, [&](std::int64_t i) {
    auto* const at = reinterpret_cast<elements::Vector<T>*>(values) + i;
    auto pack = read(at);
#pragma unroll
    for (T& value : pack.lane) {
      const float x = widen(value);
      value = narrow<T>(activation == MlpActivation::kRelu ? (x < 0 ? 0 : x) : tanhf(x));
    }
    store(at, pack);
  });
}

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    activation_backward_kernel(MlpActivation activation, T* gradients, const T* activated,
                               std::int64_t packs) {
  for_packs(packs, [&](std::int64_t i) {
    auto* const at = reinterpret_cast<elements::Vector<T>*>(gradients) + i;
    auto pack = read(at);
    const auto outputs = read(reinterpret_cast<const elements::Vector<T>*>(activated) + i);
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) {
      const float y = widen(outputs.lane[j]);
      const float gradient = widen(pack.lane[j]);
      pack.lane[j] = narrow<T>(activation == MlpActivation::kRelu ? (y <= 0 ? 0 : gradient)
                                                                  : gradient * (1 - y * y));
    }
    store(at, pack);
  });
}

// --- Losses

template <typename T>
struct LossArguments {
  T* outputs;
  std::int64_t ld;
  int columns;
  int padded;
  const void* targets;
  std::int64_t rows;
  BatchChoice choice;
  const float* scale;  // null: 1
  float factor;        // factor of the sum over the batch
  float* losses;
  std::int64_t losses_kept;
  WideLoss* loss;
};

__device__ float sum_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

__device__ float max_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}

/// Return the sum over a block, in its first thread.
__device__ float sum_of_block(float value) {
  __shared__ float of_warps[kBlockWarps];
  value = sum_of_warp(value);
  if (lane() == 0) {
    of_warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0) {
    for (const float of_warp : of_warps) {
      sum += of_warp;
    }
  }
  return sum;
}

/// Sum the blocks' sums in a fixed order, in the last block to arrive, and store the loss.
template <typename T>
__device__ void keep_sum(const LossArguments<T>& a, float loss) {
  __shared__ bool is_last;
  const float sum = sum_of_block(loss);
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
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kBlockThreads) {
    total += __ldcg(a.loss->partial + block);
  }
  total = sum_of_block(total);
  if (threadIdx.x == 0) {
    a.losses[*a.choice.steps % a.losses_kept] = total * a.factor;
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kBlockThreads)
    mse_kernel(const __grid_constant__ LossArguments<T> a) {
  const float scale = 2 * a.factor * (a.scale == nullptr ? 1 : *a.scale);
  const T* const targets =
      static_cast<const T*>(a.targets) + first_row(a.choice, a.rows) * a.columns;
  float loss = 0;
  for_rows(a.rows, [&](std::int64_t row) {
#pragma unroll 4
    for (int column = lane() * N; column < a.padded; column += 32 * N) {
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
__global__ void __launch_bounds__(kBlockThreads)
    cross_entropy_kernel(const __grid_constant__ LossArguments<T> a) {
  const float scale = a.factor * (a.scale == nullptr ? 1 : *a.scale);
  const std::int64_t* const classes =
      static_cast<const std::int64_t*>(a.targets) + first_row(a.choice, a.rows);
  float loss = 0;
  for_rows(a.rows, [&](std::int64_t row) {
    T* const outputs = a.outputs + row * a.ld;
    const auto target = static_cast<int>(classes[row]);
    float highest = -INFINITY;
    for (int column = lane(); column < a.columns; column += 32) {
      highest = fmaxf(highest, widen(outputs[column]));
    }
    highest = max_of_warp(highest);
    float sum = 0;
    float of_target = 0;
    for (int column = lane(); column < a.columns; column += 32) {
      const float logit = widen(outputs[column]) - highest;
      of_target += column == target ? logit : 0;
      sum += expf(logit);
    }
    sum = sum_of_warp(sum);
    of_target = sum_of_warp(of_target);
    loss += lane() == 0 ? logf(sum) - of_target : 0;
    for (int column = lane(); column < a.padded; column += 32) {
      const bool is_there = column < a.columns;
      const float share = is_there ? expf(widen(outputs[column]) - highest) / sum : 0;
      outputs[column] = narrow<T>(is_there ? scale * (share - (column == target ? 1 : 0)) : 0);
    }
  });
  keep_sum(a, loss);
}

// --- Biases

constexpr int kBiasThreads = 1024;
constexpr int kBiasColumns = 64;  // per block

/// A block sums some columns of a layer; its threads alternate over the rows, with one pack each.
template <typename T, typename Stored>
__global__ void __launch_bounds__(kBiasThreads)
    bias_kernel(const T* deltas, std::int64_t rows, int width, int layers, int last_columns,
                Stored* gradients) {
  constexpr int kN = kLanes<T>;
  constexpr int kPacks = kBiasColumns / kN;
  constexpr int kTurns = kBiasThreads / kPacks;
  __shared__ float sums[kTurns][kBiasColumns];
  const int layer = static_cast<int>(blockIdx.y);
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  const int turn = static_cast<int>(threadIdx.x) / kPacks;
  const int column = static_cast<int>(blockIdx.x) * kBiasColumns + pack * kN;
  const bool is_there = column < (layer == layers - 1 ? last_columns : width);
  float sum[kN] = {};
  if (is_there) {
    const T* const from = deltas + layer * rows * width + column;
#pragma unroll 8
    for (std::int64_t row = turn; row < rows; row += kTurns) {
      const auto values =
          elements::load(reinterpret_cast<const elements::Vector<T>*>(from + row * width));
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
  if (threadIdx.x < kBiasColumns && own < (layer == layers - 1 ? last_columns : width)) {
    float total = 0;
    for (int t = 0; t < kTurns; ++t) {
      total += sums[t][threadIdx.x];
    }
    const std::int64_t layer_size = (std::int64_t{width} + 1) * width;
    gradients[layer * layer_size + std::int64_t{width} * width + own] = narrow<Stored>(total);
  }
}

// --- The optimizer

template <typename Stored>
__global__ void __launch_bounds__(kBlockThreads)
    find_overflow_kernel(const Stored* gradients, std::int64_t packs, unsigned* overflowed) {
  float check = 0;
  for_packs(packs, [&](std::int64_t i) {
    const auto pack =
        elements::load(reinterpret_cast<const elements::Vector<Stored>*>(gradients) + i);
#pragma unroll
    for (const Stored& gradient : pack.lane) {
      check += 0 * widen(gradient);  // NaN unless all are finite
    }
  });
  if (check != 0) {
    atomicOr(overflowed, 1U);
  }
}

/// Weights are stored as T, or in 32 bits with a rounded copy.
template <typename T, typename Stored>
__global__ void __launch_bounds__(kBlockThreads)
    learn_flat_kernel(const __grid_constant__ Learning<T> learning, const Stored* gradients,
                      std::int64_t packs, WideLoss* loss) {
  constexpr int kN = kLanes<Stored>;
  using Packed = Pack<Stored, kN>;
  Progress progress = read_progress(learning);
  const bool skipped = learning.scaling.enabled && loss->overflowed != 0;
  Stored* weights = nullptr;
  if constexpr (std::is_same_v<T, Stored>) {
    weights = learning.weights;
  } else {
    weights = learning.master;
  }
  auto* const firsts = static_cast<Stored*>(learning.first);
  auto* const seconds = static_cast<Stored*>(learning.second);
  if (!skipped) {
    const Factors factors = factors_of(learning.rule, progress);
    for_packs(packs, [&](std::int64_t i) {
      const Packed gradient = elements::load(reinterpret_cast<const Packed*>(gradients) + i);
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
      if constexpr (!std::is_same_v<T, Stored>) {
        rounded = read(reinterpret_cast<const Pack<T, kN>*>(learning.weights) + i);
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        float first_moment = widen(first.lane[j]);
        float second_moment = widen(second.lane[j]);
        float old = widen(weight.lane[j]);
        if constexpr (!std::is_same_v<T, Stored>) {
          old = current_weight(old, widen(narrow<T>(old)), widen(rounded.lane[j]));
        }
        const float updated = update(learning.rule, factors, old, widen(gradient.lane[j]),
                                     first_moment, second_moment);
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
      if constexpr (!std::is_same_v<T, Stored>) {
        store(reinterpret_cast<Pack<T, kN>*>(learning.weights) + i, rounded);
      }
    });
  }
  __threadfence();
  __syncthreads();  // all blocks have read the values that the last block changes
  if (threadIdx.x == 0 && atomicInc(&loss->learners_arrived, gridDim.x - 1) == gridDim.x - 1) {
    advance(progress, learning.scaling, skipped);
    write_progress(learning, progress);
    loss->overflowed = 0;
  }
}

/// Call function(T(), Stored()) for the net's type and the type of the stored weights.
template <typename Function>
void for_types(ElementType type, ElementType stored, const Function& function) {
  for_type(type, [&](auto number) {
    if (stored == type) {
      function(number, number);
    } else {
      function(number, float());
    }
  });
}

}  // namespace

void launch_copy_rows(ElementType type, const void* from, std::int64_t from_ld, void* to,
                      std::int64_t to_ld, int columns, int padded, std::int64_t rows,
                      const BatchChoice& choice, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const auto is_whole = [](std::int64_t n) { return n % kLanes<T> == 0; };
    const bool in_vectors = is_aligned(from) && is_aligned(to) && is_whole(from_ld) &&
                            is_whole(to_ld) && is_whole(columns) && is_whole(padded);
    for_lanes<T>(in_vectors, [&](auto lanes) {
      copy_rows_kernel<T, decltype(lanes)::value>
          <<<blocks_for(rows, kBlockWarps, kMostBlocks), kBlockThreads, 0, stream>>>(
              static_cast<const T*>(from), from_ld, static_cast<T*>(to), to_ld, columns, padded,
              rows, choice);
      CONVTIME_CUDA_CHECK(cudaGetLastError());
    });
  });
}

void launch_activation(ElementType type, MlpActivation activation, void* values, std::int64_t count,
                       cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const std::int64_t packs = count / kLanes<T>;
    activation_kernel<<<blocks_for(packs, kBlockThreads, kMostBlocks), kBlockThreads, 0, stream>>>(
        activation, static_cast<T*>(values), packs);
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  });
}

void launch_activation_backward(ElementType type, MlpActivation activation, void* gradients,
                                const void* activated, std::int64_t count, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const std::int64_t packs = count / kLanes<T>;
    activation_backward_kernel<<<blocks_for(packs, kBlockThreads, kMostBlocks), kBlockThreads, 0,
                                 stream>>>(activation, static_cast<T*>(gradients),
                                           static_cast<const T*>(activated), packs);
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  });
}

void launch_loss(const MlpNet& net, const MlpData& data, const MlpScaling& scaling,
                 const MlpState& state, void* outputs, std::int64_t ld, int padded, WideLoss* loss,
                 cudaStream_t stream) {
  const bool is_mse = data.loss == MlpLoss::kMse;
  const float numbers =
      static_cast<float>(data.batch) * static_cast<float>(is_mse ? net.outputs : 1);
  for_type(net.type, [&](auto number) {
    using T = decltype(number);
    const LossArguments<T> arguments{static_cast<T*>(outputs),
                                     ld,
                                     net.outputs,
                                     padded,
                                     data.targets,
                                     data.batch,
                                     {state.counters, data.batches},
                                     scaling.enabled ? state.rates + 1 : nullptr,
                                     1 / numbers,
                                     state.losses,
                                     state.losses_kept,
                                     loss};
    const unsigned blocks = blocks_for(data.batch, kBlockWarps, WideLoss::kMostBlocks);
    if (is_mse) {
      for_lanes<T>(is_aligned(data.targets) && net.outputs % kLanes<T> == 0, [&](auto lanes) {
        mse_kernel<T, decltype(lanes)::value><<<blocks, kBlockThreads, 0, stream>>>(arguments);
      });
    } else {
      cross_entropy_kernel<<<blocks, kBlockThreads, 0, stream>>>(arguments);
    }
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  });
}

void launch_bias_gradients(const MlpNet& net, ElementType stored, const void* deltas,
                           std::int64_t rows, int last_columns, void* gradients,
                           cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((net.width + kBiasColumns - 1) / kBiasColumns),
                    static_cast<unsigned>(net.layers));
  for_types(net.type, stored, [&](auto number, auto kept) {
    using T = decltype(number);
    bias_kernel<<<blocks, kBiasThreads, 0, stream>>>(static_cast<const T*>(deltas), rows, net.width,
                                                     net.layers, last_columns,
                                                     static_cast<decltype(kept)*>(gradients));
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  });
}

void launch_learn(const MlpNet& net, const MlpRule& rule, const MlpScaling& scaling,
                  const MlpState& state, const void* gradients, WideLoss* loss,
                  cudaStream_t stream) {
  const ElementType stored = state.master != nullptr ? ElementType::kFloat : net.type;
  for_types(net.type, stored, [&](auto number, auto kept) {
    using T = decltype(number);
    using Stored = decltype(kept);
    const auto learning = learning_of<T>(rule, scaling, state);
    const auto* const of_weights = static_cast<const Stored*>(gradients);
    const std::int64_t packs = weight_count(net) / kLanes<Stored>;
    const unsigned blocks = blocks_for(packs, kBlockThreads, kMostBlocks);
    if (scaling.enabled) {
      find_overflow_kernel<<<blocks, kBlockThreads, 0, stream>>>(of_weights, packs,
                                                                 &loss->overflowed);
      CONVTIME_CUDA_CHECK(cudaGetLastError());
    }
    learn_flat_kernel<<<blocks, kBlockThreads, 0, stream>>>(learning, of_weights, packs, loss);
    CONVTIME_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace convtime::mlp
