#pragma once

#include "kernels/mlp/learning.cuh"
#include "kernels/mlp/mlp.h"
#include "kernels/mlp/rows.cuh"

// The training step of a net that fits on chip. A block holds all weights in shared memory, and
// takes one tile of the batch after the other:
//
//   1. Each warp takes 16 rows of the tile forward through all layers, makes the loss and its
//      gradient, and takes that back through the layers, with no other warp to wait for. It leaves
//      each layer's input, and the gradient of each layer's output, in shared memory.
//   2. The warps share out the gradients of the weights, of all layers at once: 32 × 64 of them at
//      a time are products over the tile's rows. They are added to what earlier tiles gave.
//
// Behind the last tile the blocks' gradients are added up, in a fixed order, and the weights are
// updated. Where one cluster of blocks is enough for the batch, that is done in the same launch,
// out of each other's shared memory; else by a second kernel, out of device memory.

namespace convtime::mlp {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Where the gradient comes from that is taken back, or that there is none.
enum class Objective : std::int8_t { kMse, kCrossEntropy, kGradient, kNone };

/// What a block says of a step beside its gradients.
struct Report {
  float loss;
  int overflowed;  // whether one of the gradients is not finite
};

template <typename T>
struct Step {
  int layers;
  int inputs;
  int outputs;
  MlpActivation activation;
  Objective objective;
  bool vector_inputs;  // rows of inputs are multiples of 16 bytes, and aligned so
  bool pair_targets;   // likewise 4 bytes
  int tile_rows;
  bool gradients_on_chip;
  int steps;
  std::int64_t batch;
  std::int64_t batches;
  float loss_factor;  // of the sum over the batch
  const T* weights;
  const T* data;
  const void* targets;  // of kGradient, the outputs' gradient; of kNone, null
  int target_bytes;     // of a row of them
  T* results;           // of kNone the outputs, of kGradient the inputs' gradient, or null
  float4* gradients;    // a slot a block, in the order of Place
  Report* reports;      // one a block
  Learning<T> learning;
};

/// Gradients are kept as the tensor cores give them, so that warps write and read them in one
/// piece: four at a time, for every lane, block of 8 columns, half of 16 rows, and unit of 32 × 64.
template <int W>
struct Place {
  static constexpr int kUnitRows = 32;
  static constexpr int kUnitColumns = 64;
  static constexpr int kUnits = W / kUnitRows * (W / kUnitColumns);  // of a layer
  static constexpr int kSize = kUnitRows * kUnitColumns / 4;         // of a unit, in fours

  /// Where the weights have the first two of four; the other two are eight rows below.
  static __device__ std::size_t offset(int place) {
    const int lane = place % 32;
    const int column = place / 32 % 8 * 8 + lane % 4 * 2;
    const int row = place / 256 % 2 * 16 + lane / 4;
    const int unit = place / kSize;
    const int left = unit % (W / kUnitColumns) * kUnitColumns;
    const int top = unit / (W / kUnitColumns) * kUnitRows;  // from the first layer's first row
    return static_cast<std::size_t>(top + row) * W + left + column;
  }
};

/// How a block divides its shared memory.
template <typename T, int W>
struct Shared {
  T* weights;
  T* inputs;  // of each layer, a tile of the batch
  T* deltas;  // the gradients of each layer's outputs, before its activation
  float4* gradients;
  Report* report;
  float* losses;  // of each warp

  __device__ explicit Shared(const Step<T>& step) {
    const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
    const std::size_t layers = step.layers;
    const bool keeps = step.objective != Objective::kNone;
    weights = reinterpret_cast<T*>(shared_memory());
    inputs = weights + layers * W * W;
    deltas = inputs + (keeps ? layers : 1) * tile;
    gradients = reinterpret_cast<float4*>(deltas + (keeps ? layers : 0) * tile);
    report =
        reinterpret_cast<Report*>(gradients + (step.gradients_on_chip ? layers * W * W / 4 : 0));
    losses = reinterpret_cast<float*>(report + 1);
  }
};

/// Where a step finds its batch.
template <typename T>
struct Batch {
  const T* inputs;
  const void* targets;
};

template <typename T, int W>
__device__ void copy_weights(const Step<T>& step, T* to) {
  const int chunks = step.layers * W * (W / 8);
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += kThreads) {
    copy_async(to + tile_offset<W>(i / (W / 8), i % (W / 8)), step.weights + 8 * i);
  }
}

/// The tile's rows of the batch, with zeros beyond the batch's last and a row's last.
template <typename T, int W>
__device__ void copy_inputs(const Step<T>& step, const Batch<T>& batch, std::int64_t first_row,
                            T* to) {
  for (int i = static_cast<int>(threadIdx.x); i < step.tile_rows * (W / 8); i += kThreads) {
    const int row = i / (W / 8);
    const int column = i % (W / 8) * 8;
    T* const chunk = to + tile_offset<W>(row, column / 8);
    const bool is_there = first_row + row < step.batch && column < step.inputs;
    const T* const from = batch.inputs + (first_row + row) * step.inputs + column;
    if (is_there && step.vector_inputs) {
      copy_async(chunk, from);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        chunk[j] = is_there && column + j < step.inputs ? from[j] : T(0.0F);
      }
    }
  }
}

/// Has the rows of a tile that are in the batch come near before they are needed.
template <typename T>
__device__ void prefetch(const Step<T>& step, const void* rows, int row_bytes,
                         std::int64_t first_row) {
  constexpr int kLine = 128;
  const std::int64_t left = step.batch - first_row;
  const int bytes = row_bytes * static_cast<int>(left < step.tile_rows ? left : step.tile_rows);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < bytes; i += kThreads * kLine) {
    prefetch_to_l2(static_cast<const char*>(rows) + first_row * row_bytes + i);
  }
}

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

// --- Objectives: outputs become their gradient, and the sum of the losses is returned
// -------------------------------------------------------------------------------------

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

// --- The two halves of a tile
// -----------------------------------------------------------------------

/// 16 rows of a tile forward and back, by a warp; returns what its lane has of their loss.
template <typename T, int W>
__device__ float take_through(const Step<T>& step, const Shared<T, W>& shared,
                              const Batch<T>& batch, std::int64_t tile_row, int row, float scale) {
  const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
  const std::int64_t first_row = tile_row + row;
  const int last = step.layers - 1;

  Rows<W> rows = load_rows<T, W>(shared.inputs, row);
  for (int layer = 0; layer < last; ++layer) {
    Sums<W> sums = multiply<false>(rows, shared.weights + layer * W * W);
    activate(sums, step.activation);
    rows = round_rows<T>(sums);
    if (step.objective != Objective::kNone) {
      store_rows(shared.inputs + (layer + 1) * tile, row, rows);
    }
  }
  Sums<W> sums = multiply<false>(rows, shared.weights + last * W * W);

  float loss = 0;
  switch (step.objective) {
    case Objective::kNone:
      store_results(sums, step, first_row, step.outputs);
      return 0;
    case Objective::kGradient:
      take_gradient(sums, step, static_cast<const T*>(batch.targets), first_row);
      break;
    case Objective::kMse:
      loss = squared_error(sums, step, static_cast<const T*>(batch.targets), first_row, scale);
      break;
    case Objective::kCrossEntropy:
      loss = cross_entropy(sums, step, static_cast<const std::int64_t*>(batch.targets), first_row,
                           scale);
      break;
  }

  rows = round_rows<T>(sums);
  store_rows(shared.deltas + last * tile, row, rows);
  for (int layer = last; layer > 0; --layer) {
    sums = multiply<true>(rows, shared.weights + layer * W * W);
    multiply_by_derivative<T>(sums, shared.inputs + layer * tile, row, step.activation);
    rows = round_rows<T>(sums);
    store_rows(shared.deltas + (layer - 1) * tile, row, rows);
  }
  if (step.objective == Objective::kGradient && step.results != nullptr) {
    sums = multiply<true>(rows, shared.weights);
    store_results(sums, step, first_row, step.inputs);
  }
  return loss;
}

/// Adds a tile's part to the gradients of the weights; returns whether all is finite.
template <typename T, int W>
__device__ bool add_gradients(const Step<T>& step, const Shared<T, W>& shared, float4* gradients,
                              bool is_first) {
  using Places = Place<W>;
  const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
  const int lane = lane_id();
  const int matrix = lane / 8;
  float check = 0;
  for (int unit = static_cast<int>(threadIdx.x) / 32; unit < step.layers * Places::kUnits;
       unit += kWarps) {
    const int layer = unit / Places::kUnits;
    const int top = unit % Places::kUnits / (W / 64) * (Places::kUnitRows / 8);  // chunks
    const int left = unit % (W / 64) * (Places::kUnitColumns / 8);
    const T* const deltas = shared.deltas + layer * tile;
    const T* const inputs = shared.inputs + layer * tile;
    float4* const own = gradients + unit * Places::kSize + lane;

    float sums[2][8][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 before = is_first ? float4{} : own[(8 * i + j) * 32];
        sums[i][j][0] = before.x;
        sums[i][j][1] = before.y;
        sums[i][j][2] = before.z;
        sums[i][j][3] = before.w;
      }
    }
    for (int k = 0; k < step.tile_rows; k += 16) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = k + lane % 8 + matrix / 2 * 8;
        load_matrices<true>(a[i], deltas + tile_offset<W>(row, top + 2 * i + matrix % 2));
      }
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const int row = k + lane % 8 + matrix % 2 * 8;
        std::uint32_t b[4];
        load_matrices<true>(b, inputs + tile_offset<W>(row, left + j + matrix / 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add<T>(sums[i][j], a[i], b[0], b[1]);
          multiply_add<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto& s = sums[i][j];
        own[(8 * i + j) * 32] = make_float4(s[0], s[1], s[2], s[3]);
        check += 0 * s[0] + 0 * s[1] + 0 * s[2] + 0 * s[3];  // NaN unless all are finite
      }
    }
  }
  return check == 0;
}

// --- Sums over blocks, and the update
// ---------------------------------------------------------------

__device__ inline void add(float4& sum, const float4& more) {
  sum.x += more.x;
  sum.y += more.y;
  sum.z += more.z;
  sum.w += more.w;
}

/// Updates the four weights of a place.
template <int W, typename T>
__device__ void update_place(const Learning<T>& learning, const Factors& factors, int place,
                             const float4& gradients) {
  const std::size_t offset = Place<W>::offset(place);
  update_pair(learning, factors, offset, {gradients.x, gradients.y});
  update_pair(learning, factors, offset + 8 * W, {gradients.z, gradients.w});
}

/// Of a step in one cluster: each block adds up and updates its share of the weights.
template <typename T, int W>
__device__ void learn_in_cluster(const Step<T>& step, const Shared<T, W>& shared,
                                 Progress& progress) {
  const unsigned blocks = gridDim.x;
  synchronize_cluster();
  bool skipped = false;
  if (step.learning.scaling.enabled) {
    for (unsigned block = 0; block < blocks; ++block) {
      skipped |= of_block(shared.report, block)->overflowed != 0;
    }
  }
  if (!skipped) {
    const Factors factors = factors_of(step.learning.rule, progress);
    for (int place = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
         place < step.layers * W * W / 4; place += static_cast<int>(blocks * kThreads)) {
      float4 sum{};
#pragma unroll 8
      for (unsigned i = 0; i < blocks; ++i) {
        const unsigned block = (blockIdx.x + i) % blocks;  // not all of them the same one's at once
        add(sum, of_block(shared.gradients, block)[place]);
      }
      update_place<W>(step.learning, factors, place, sum);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    float loss = 0;
    for (unsigned block = 0; block < blocks; ++block) {
      loss += of_block(shared.report, block)->loss;
    }
    step.learning.losses[progress.steps % step.learning.losses_kept] = loss;
  }
  advance(progress, step.learning.scaling, skipped);
  synchronize_cluster();  // until all have read, and the next step finds the new weights
}

template <typename T, int W, bool kOneCluster>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ Step<T> step) {
  const Shared<T, W> shared(step);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool trains =
      step.objective == Objective::kMse || step.objective == Objective::kCrossEntropy;
  const bool keeps = step.objective != Objective::kNone;
  const std::size_t slot = static_cast<std::size_t>(step.layers) * W * W / 4;
  float4* const own_slot = kOneCluster ? nullptr : step.gradients + blockIdx.x * slot;
  float4* const gradients = step.gradients_on_chip ? shared.gradients : own_slot;
  Progress progress = trains ? read_progress(step.learning) : Progress{0, 0, 0, 0, 1};

  for (int i = 0; i < step.steps; ++i) {
    copy_weights<T, W>(step, shared.weights);
    const std::int64_t first_of_batch = progress.steps % step.batches * step.batch;
    const Batch<T> batch{
        step.data + first_of_batch * step.inputs,
        static_cast<const char*>(step.targets) + first_of_batch * step.target_bytes};
    float loss = 0;
    bool finite = true;
    const std::int64_t stride = std::int64_t{gridDim.x} * step.tile_rows;
    const std::int64_t begin = std::int64_t{blockIdx.x} * step.tile_rows;
    std::int64_t tile_row = begin;
    do {  // once, too, where the batch ends before: the block's gradients are then zeros
      copy_inputs<T, W>(step, batch, tile_row, shared.inputs);
      if (tile_row == begin) {
        prefetch(step, batch.targets, step.target_bytes, tile_row);
      }
      prefetch(step, batch.inputs, step.inputs * int{sizeof(T)}, tile_row + stride);
      prefetch(step, batch.targets, step.target_bytes, tile_row + stride);
      wait_for_copies();
      __syncthreads();
      for (int row = warp * kWarpRows; row < step.tile_rows; row += kWarps * kWarpRows) {
        loss += take_through<T, W>(step, shared, batch, tile_row, row,
                                   progress.scale * step.loss_factor);
      }
      __syncthreads();
      if (keeps) {
        finite &= add_gradients<T, W>(step, shared, gradients, tile_row == begin);
        __syncthreads();
      }
      tile_row += stride;
    } while (tile_row < step.batch);
    if (!keeps) {
      return;
    }

    for (int distance = 16; distance > 0; distance /= 2) {
      loss += __shfl_xor_sync(0xffffffff, loss, distance);
    }
    if (lane_id() == 0) {
      shared.losses[warp] = loss;
    }
    const bool overflowed = __syncthreads_or(finite ? 0 : 1) != 0;
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        sum += shared.losses[w];
      }
      Report* const report = kOneCluster ? shared.report : step.reports + blockIdx.x;
      *report = {sum * step.loss_factor, overflowed ? 1 : 0};
    }
    if constexpr (kOneCluster) {
      learn_in_cluster<T, W>(step, shared, progress);
    } else if (step.gradients_on_chip) {
      for (std::size_t p = threadIdx.x; p < slot; p += kThreads) {
        own_slot[p] = shared.gradients[p];
      }
    }
  }
  if (kOneCluster && blockIdx.x == 0 && threadIdx.x == 0) {
    write_progress(step.learning, progress);
  }
}

constexpr int kPlaces = 32;  // that a block of the second kernel adds up
constexpr int kGroups = kThreads / kPlaces;

/// The sum over the blocks' slots at a place, in the first kPlaces threads.
template <typename T>
__device__ float4 sum_slots(const Step<T>& step, int slots, std::size_t size, int place) {
  auto* const shared = reinterpret_cast<float4*>(shared_memory());
  const int group = static_cast<int>(threadIdx.x) / kPlaces;
  float4 sum{};
#pragma unroll 8
  for (int slot = group; slot < slots; slot += kGroups) {
    add(sum, step.gradients[slot * size + place]);
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < kGroups; ++other) {
      add(sum, shared[other * kPlaces + threadIdx.x]);
    }
  }
  return sum;
}

/// Behind step_kernel, of training steps on as many blocks as there are slots.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    learn_kernel(const __grid_constant__ Step<T> step, int slots, unsigned* arrived) {
  Progress progress = read_progress(step.learning);
  const int place =
      static_cast<int>(blockIdx.x) * kPlaces + static_cast<int>(threadIdx.x) % kPlaces;
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  bool overflowed = false;
  for (int slot = static_cast<int>(threadIdx.x); slot < slots; slot += kThreads) {
    overflowed |= step.reports[slot].overflowed != 0;
  }
  const bool skipped = __syncthreads_or(step.learning.scaling.enabled && overflowed) != 0;
  if (!skipped) {
    const float4 sum = sum_slots(step, slots, size, place);
    if (threadIdx.x < kPlaces) {
      update_place<W>(step.learning, factors_of(step.learning.rule, progress), place, sum);
    }
  }
  __threadfence();
  __syncthreads();  // all have read what the last block changes
  if (threadIdx.x == 0 && atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1) {
    float loss = 0;
    for (int slot = 0; slot < slots; ++slot) {
      loss += step.reports[slot].loss;
    }
    step.learning.losses[progress.steps % step.learning.losses_kept] = loss;
    advance(progress, step.learning.scaling, skipped);
    write_progress(step.learning, progress);
  }
}

/// Behind step_kernel, of Objective::kGradient.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ Step<T> step, int slots, T* grad_weights) {
  const int place =
      static_cast<int>(blockIdx.x) * kPlaces + static_cast<int>(threadIdx.x) % kPlaces;
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  const float4 sum = sum_slots(step, slots, size, place);
  if (threadIdx.x < kPlaces) {
    const std::size_t offset = Place<W>::offset(place);
    write_pair(grad_weights + offset, {sum.x, sum.y});
    write_pair(grad_weights + offset + 8 * W, {sum.z, sum.w});
  }
}

}  // namespace convtime::mlp
