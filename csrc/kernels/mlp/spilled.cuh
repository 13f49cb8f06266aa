#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/objectives.cuh"
#include "kernels/mlp/step.cuh"

// The training step of a net whose layers do not fit on chip side by side, of any depth. A block
// holds one state of up to 512 rows of the batch in shared memory, and takes it through one layer
// after the other, in place:
//
//   1. Forward, the state is each layer's output. Each warp takes 16 rows at a time, with no other
//      to wait for, and leaves them in device memory, too, but for the last layer's: the one trip
//      that activations make.
//   2. The loss makes the outputs their gradient.
//   3. Backward, the state is the gradient of each layer's output. The layer's inputs come back, 64
//      rows at a time. The warps have the gradients of its weights in their registers, a unit each,
//      until all rows are through, and meanwhile make the gradients of these inputs.
//
// Weights are fetched a layer ahead. A second kernel adds up the blocks' gradients.

namespace convtime::mlp {

template <typename T>
struct Spilled {
  static constexpr int kWidth = kSpilledSizes.width;
  static constexpr int kMatrix = kWidth * kWidth;
  static constexpr int kStateRows = kSpilledSizes.state_rows;
  static constexpr int kTileRows = kSpilledSizes.tile_rows;
  static constexpr int kTile = kTileRows * kWidth;
  static_assert(Place<kWidth>::kUnits == kWarps, "a unit of a layer a warp");

  static_assert(kSpilledSizes.shared_bytes ==
                sizeof(T) * (kStateRows * kWidth + 2 * kMatrix + 2 * kTile) +
                    kWarps * sizeof(float));

  const Step<T>& step;
  const Batch<T> batch;
  T* const state;
  T* const weights;  // of two layers: even ones, odd ones
  T* const tiles;    // inputs of a layer, of two tiles
  float* const losses;

  std::int64_t first_row = 0;  // of the state, in the batch
  int tile_count = 0;          // of tiles of the state

  __device__ Spilled(const Step<T>& s, const Batch<T>& b)
      : step(s),
        batch(b),
        state(reinterpret_cast<T*>(shared_memory())),
        weights(state + kStateRows * kWidth),
        tiles(weights + 2 * kMatrix),
        losses(reinterpret_cast<float*>(tiles + 2 * kTile)) {}

  __device__ T* weights_of(int layer) const { return weights + layer % 2 * kMatrix; }

  __device__ void fetch_weights(int layer) const {
    copy_full_rows<T, kWidth>(step.weights + static_cast<std::size_t>(layer) * kMatrix, 0, kWidth,
                              kWidth, weights_of(layer));
  }

  /// Of a layer but the first, where its inputs are in device memory.
  __device__ T* spilled_inputs(int layer) const {
    return step.spilled + (layer - 1) * step.batch * kWidth;
  }

  __device__ void fetch_tile(int layer, int tile, T* to) const {
    const std::int64_t row = first_row + tile * kTileRows;
    if (layer == 0) {
      copy_inputs<T, kWidth>(step, batch, row, kTileRows, to);
    } else {
      copy_full_rows<T, kWidth>(spilled_inputs(layer), row, step.batch, kTileRows, to);
    }
  }

  /// Has a warp's 16 rows of the state go to device memory.
  __device__ void spill(int layer, int row) const {
    constexpr int kChunks = kWidth / 8;
    T* const to = spilled_inputs(layer);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows * kChunks; i += 32) {
      const int r = row + (i + lane_id()) / kChunks;
      const int chunk = lane_id() % kChunks;
      if (first_row + r < step.batch) {
        *reinterpret_cast<uint4*>(to + (first_row + r) * kWidth + 8 * chunk) =
            *reinterpret_cast<const uint4*>(state + tile_offset<kWidth>(r, chunk));
      }
    }
  }

  /// From the inputs to the gradient of the outputs; returns what the lane has of the loss.
  __device__ float go_forward(float scale) const {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int last = step.layers - 1;
    float loss = 0;
    copy_inputs<T, kWidth>(step, batch, first_row, tile_count * kTileRows, state);
    fetch_weights(0);
    for (int layer = 0; layer <= last; ++layer) {
      wait_for_copies();
      __syncthreads();
      if (layer < last) {
        fetch_weights(layer + 1);
      }
      for (int row = warp * kWarpRows; row < tile_count * kTileRows; row += kWarps * kWarpRows) {
        Sums<kWidth> sums = multiply<false>(load_rows<T, kWidth>(state, row), weights_of(layer));
        if (layer < last) {
          activate(sums, step.activation);
        } else {
          loss += differentiate(sums, step, batch, first_row + row, scale);
        }
        store_rows(state, row, round_rows<T>(sums));
        if (layer < last && step.objective != Objective::kNone) {
          spill(layer + 1, row);
        }
      }
    }
    return loss;
  }

  /// A warp's 32 × 32 of the product of a tile of the state with weights.
  struct Quarter {
    float value[2][4][4] = {};
  };

  static __device__ int quarter_row() { return static_cast<int>(threadIdx.x / 32 % 2) * 32; }
  static __device__ int quarter_chunk() { return static_cast<int>(threadIdx.x / 64) * 4; }

  static __device__ Quarter multiply_back(const T* deltas, const T* matrix_of_weights) {
    const int matrix = lane_id() / 8;
    const int row = quarter_row() + lane_id() % 8 + matrix % 2 * 8;
    const int weights_row = lane_id() % 8 + matrix % 2 * 8;
    const int chunk = quarter_chunk() + matrix / 2;
    Quarter quarter;
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_matrices<false>(a[i], deltas + tile_offset<kWidth>(row + 16 * i, 2 * k + matrix / 2));
      }
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        std::uint32_t b[4];
        load_matrices<true>(
            b, matrix_of_weights + tile_offset<kWidth>(16 * k + weights_row, chunk + j));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add<T>(quarter.value[i][j], a[i], b[0], b[1]);
          multiply_add<T>(quarter.value[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
    return quarter;
  }

  /// Calls function(pair, word) for pairs of the quarter, and their place in a tile.
  template <typename Function>
  static __device__ void for_words(Quarter& quarter, const Function& function) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = quarter_row() + 16 * i + 8 * half + lane_id() / 4;
          const int offset = tile_offset<kWidth>(row, quarter_chunk() + j) + lane_id() % 4 * 2;
          function(&quarter.value[i][j][2 * half], offset);
        }
      }
    }
  }

  /// Multiplies by the derivative of what the activation gave.
  __device__ void differentiate_back(Quarter& quarter, const T* activated) const {
    const bool is_relu = step.activation == MlpActivation::kRelu;
    for_words(quarter, [&](float* pair, int offset) {
      const float2 y = read_pair(activated + offset);
      pair[0] = is_relu ? (y.x <= 0 ? 0 : pair[0]) : pair[0] * (1 - y.x * y.x);
      pair[1] = is_relu ? (y.y <= 0 ? 0 : pair[1]) : pair[1] * (1 - y.y * y.y);
    });
  }

  /// Writes the gradient of the net's inputs, of rows that are in the batch.
  __device__ void store_input_gradient(int tile) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads) {
      const int row = tile * kTileRows + i / kWidth;
      const int column = i % kWidth;
      if (first_row + row < step.batch && column < step.inputs) {
        step.results[(first_row + row) * step.inputs + column] =
            state[tile_offset<kWidth>(row, column / 8) + column % 8];
      }
    }
  }

  /// From the gradient of the outputs to those of all weights, which are added to the block's;
  /// returns whether all are finite.
  __device__ bool go_backward(float4* gradients, bool is_first) const {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const bool wants_inputs = step.results != nullptr;
    bool finite = true;
    int fetched = 0;  // tiles, which take turns
    fetch_tile(step.layers - 1, 0, tiles);
    for (int layer = step.layers - 1; layer >= 0; --layer) {
      float4* const place = gradients + (layer * kWarps + warp) * Place<kWidth>::kSize;
      Unit unit = load_unit(place, is_first);
      for (int tile = 0; tile < tile_count; ++tile) {
        wait_for_copies();
        __syncthreads();  // what comes next takes the place of what all have read
        const T* const inputs = tiles + fetched % 2 * kTile;
        T* const next = tiles + ++fetched % 2 * kTile;
        if (tile + 1 < tile_count) {
          fetch_tile(layer, tile + 1, next);
        } else if (layer > 0) {
          fetch_tile(layer - 1, 0, next);
        }
        if (tile == 0 && layer > 0) {
          fetch_weights(layer - 1);
        }
        T* const deltas = state + tile * kTile;
        add_products<T, kWidth, kTileRows>(unit, deltas, inputs, kTileRows, warp);
        if (layer > 0 || wants_inputs) {
          Quarter quarter = multiply_back(deltas, weights_of(layer));
          if (layer > 0) {
            differentiate_back(quarter, inputs);
          }
          __syncthreads();  // all have read the deltas that these take the place of
          for_words(quarter, [&](const float* pair, int offset) {
            write_pair(deltas + offset, {pair[0], pair[1]});
          });
        }
        if (layer == 0 && wants_inputs) {
          __syncthreads();
          store_input_gradient(tile);
        }
      }
      finite &= store_unit(place, unit);
    }
    return finite;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    spilled_kernel(const __grid_constant__ Step<T> step) {
  using Block = Spilled<T>;
  const Progress progress = find_progress(step);
  announce(step, progress);
  Block block(step, find_batch(step, progress));
  float4* const gradients =
      step.gradients + blockIdx.x * (static_cast<std::size_t>(step.layers) * Block::kMatrix / 4);
  const std::int64_t begin = std::int64_t{blockIdx.x} * step.tile_rows;
  float loss = 0;
  bool finite = true;
  for (std::int64_t row = begin; row < step.batch;
       row += std::int64_t{gridDim.x} * step.tile_rows) {
    const std::int64_t left = step.batch - row;
    const int rows = static_cast<int>(left < step.tile_rows ? left : step.tile_rows);
    block.first_row = row;
    block.tile_count = (rows + Block::kTileRows - 1) / Block::kTileRows;
    __syncthreads();  // all are through with the state before
    loss += block.go_forward(progress.scale * step.loss_factor);
    if (step.objective != Objective::kNone) {
      finite &= block.go_backward(gradients, row == begin);
    }
  }
  if (step.objective != Objective::kNone) {
    tell(step, loss, finite, block.losses, step.reports + blockIdx.x);
  }
}

}  // namespace convtime::mlp
