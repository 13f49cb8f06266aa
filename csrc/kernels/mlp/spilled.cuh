#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/objectives.cuh"
#include "kernels/mlp/step.cuh"

// The training step of a net of any depth whose layers do not fit on chip together. A block holds
// one state of up to 512 rows of the batch in shared memory, and takes it through one layer after
// the other, in place:
//
//   1. Forward, the state is each layer's output. Each warp takes 32 rows at a time, without
//      waiting for other warps. It also writes them to device memory, except for the last layer.
//      This is the only time that activations are written.
//   2. The loss replaces the outputs by their gradient, 16 rows at a time.
//   3. Backward, the state is the gradient of each layer's output. The layer's inputs are read
//      back, 128 rows at a time. Each warp accumulates one unit of the weight gradients in its
//      registers until all rows are done. At the same time the warps compute the gradients of
//      the layer's inputs.
//
// All loads overlap with computation. A second kernel sums the blocks' gradients.

namespace convtime::mlp {

template <typename T, typename Kind_>
struct Spilled {
  using Kind = Kind_;
  static constexpr int kWidth = kSpilledSizes.width;
  static constexpr int kMatrix = kWidth * kWidth;
  static constexpr int kStateRows = kSpilledSizes.state_rows;
  static constexpr int kTileRows = kSpilledSizes.tile_rows;
  static constexpr int kShareRows = kSpilledSizes.share_rows;
  static constexpr int kTile = kTileRows * kWidth;
  static constexpr int kGroupRows = 32;  // rows that a warp takes at a time
  static_assert(Place<kWidth>::kUnits == kWarps, "each warp must have one unit of a layer");
  static_assert(kTile >= kMatrix, "the forward pass keeps weights in a tile's memory");
  static_assert(kWarps == kTileRows / kGroupRows * 2, "each warp must have half a group's columns");

  static_assert(kSpilledSizes.shared_bytes >=
                sizeof(T) * (kStateRows * kWidth + kMatrix + 2 * kTile) + kWarps * sizeof(float));

  const Step<T, Kind>& step;
  const Batch<T> batch;
  T* const state;
  T* const weights;
  T* const tiles;  // inputs of a layer, two tiles
  float* const losses;

  std::int64_t first_row = 0;  // first row of the state in the batch
  int rows = 0;                // rows of the state: a multiple of kShareRows

  Spilled(const Step<T, Kind>& s, const Batch<T>& b)
      : step(s),
        batch(b),
        state(reinterpret_cast<T*>(shared_memory())),
        weights(state + kStateRows * kWidth),
        tiles(weights + kMatrix),
        losses(reinterpret_cast<float*>(tiles + 2 * kTile)) {}

  void fetch_weights(int layer, T* to) const {
    copy_full_rows<T, kWidth>(step.weights + static_cast<std::size_t>(layer) * kMatrix, 0, kWidth,
                              kWidth, to);
  }

  /// Return the inputs of a layer except the first, in device memory.
  T* spilled_inputs(int layer) const { return step.spilled + (layer - 1) * step.batch * kWidth; }

  /// Return the rows of the state's tile that starts at `row`.
  int rows_of_tile(int row) const { return rows - row < kTileRows ? rows - row : kTileRows; }

  /// Fetch a layer's inputs for that tile.
  void fetch_tile(int layer, int row, T* to) const {
    if (layer == 0) {
      copy_inputs<T, kWidth>(step, batch, first_row + row, rows_of_tile(row), to);
    } else {
      copy_full_rows<T, kWidth>(spilled_inputs(layer), first_row + row, step.batch,
                                rows_of_tile(row), to);
    }
  }

  /// Write a warp's rows of the state to device memory, with all stores in flight at once.
  void spill(int layer, int row) const {
    constexpr int kChunks = kWidth / 8;
    constexpr int kRows = 32 / kChunks;  // at a time
    const int first = row + lane_id() / kChunks;
    const int chunk = lane_id() % kChunks;
    __syncwarp();
    uint4 eights[kGroupRows / kRows];
#pragma unroll
    for (int i = 0; i < kGroupRows; i += kRows) {
      eights[i / kRows] =
          *reinterpret_cast<const uint4*>(state + tile_offset<kWidth>(first + i, chunk));
    }
    T* const to = spilled_inputs(layer) + (first_row + first) * kWidth + 8 * chunk;
    const std::int64_t left = step.batch - first_row - first;
    const int end = left < kGroupRows ? static_cast<int>(left) : kGroupRows;
#pragma unroll
    for (int i = 0; i < kGroupRows; i += kRows) {
      if (i < end) {
        *reinterpret_cast<uint4*>(to + i * kWidth) = eights[i / kRows];
      }
    }
  }

  /// In the forward pass, the weights alternate between their own memory and the tiles' memory. The
  /// last layer's weights are in their own memory, because the backward pass starts with them.
  T* forward_weights(int layer) const {
    return (step.layers - 1 - layer) % 2 == 0 ? weights : tiles + kTile;
  }

  /// Compute the gradient of the outputs from the inputs; return the lane's share of the loss.
  float go_forward(float scale) const {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int last = step.layers - 1;
    copy_inputs<T, kWidth>(step, batch, first_row, rows, state);
    fetch_weights(0, forward_weights(0));
    for (int layer = 0; layer < last; ++layer) {
      wait_for_copies();
      __syncthreads();
      fetch_weights(layer + 1, forward_weights(layer + 1));
      if (layer == 0) {  // waits only for inputs
        prefetch(step, batch.targets, step.target_bytes, first_row);
      }
      const Operand<false, false, T, kWidth> right(forward_weights(layer));
      for (int row = warp * kGroupRows; row < rows; row += kWarps * kGroupRows) {
        Sums<kWidth> sums[2];  // 16 rows each
        add_product<kWidth / 16>(sums, Operand<true, false, T, kWidth>(state + row * kWidth),
                                 right);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          activate<Kind::kActivation>(sums[i]);
          store_rows(state, row + kWarpRows * i, round_rows<T>(sums[i]));
        }
        if constexpr (Kind::kKeeps) {
          spill(layer + 1, row);
        }
      }
    }

    wait_for_copies();
    __syncthreads();
    if constexpr (Kind::kKeeps) {
      fetch_tile(last, 0, tiles);
    }
    float loss = 0;
    for (int row = warp * kWarpRows; row < rows; row += kWarps * kWarpRows) {
      Sums<kWidth> sums;
      if constexpr (Kind::kObjective != Objective::kGradient) {  // which does not depend on outputs
        sums = multiply<false>(load_rows<T, kWidth>(state, row), forward_weights(last));
      }
      loss += differentiate(sums, step, batch, first_row + row, scale);
      store_rows(state, row, round_rows<T>(sums));
    }
    return loss;
  }

  // In the backward pass, a warp has half of the columns of 32 rows of a tile.

  static int group_row() { return static_cast<int>(threadIdx.x / 64) * kGroupRows; }
  static int group_half() { return static_cast<int>(threadIdx.x / 32 % 2); }

  /// Call function(pair, offset) for pairs of the sums and their offset in a tile.
  template <typename Function>
  static void for_words(Sums<64> (&sums)[2], const Function& function) {
    const int row = group_row() + lane_id() / 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int offset = tile_offset<kWidth>(row, 8 * group_half() + j) + lane_id() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        function(&sums[i / 2].value[j][i % 2 * 2], offset + 8 * i * kWidth);
      }
    }
  }

  /// Multiply by the derivative, computed from the activation's output.
  void differentiate_back(Sums<64> (&sums)[2], const T* activated) const {
    for_words(sums, [&](float* pair, int offset) {
      const float2 y = read_pair(activated + offset);
      pair[0] = differentiated<Kind::kActivation>(pair[0], y.x);
      pair[1] = differentiated<Kind::kActivation>(pair[1], y.y);
    });
  }

  /// Replace a tile of the state, the gradient of a layer's outputs, by the gradient of its inputs.
  void take_back(int layer, T* deltas, const T* inputs, int tile_rows) const {
    const bool has_rows = group_row() < tile_rows;
    Sums<64> sums[2];
    if (has_rows) {
      add_product<kWidth / 16>(sums, Operand<true, false, T, kWidth>(deltas + group_row() * kWidth),
                               Operand<false, true, T, kWidth>(weights, 4 * group_half()));
      if (layer > 0) {
        differentiate_back(sums, inputs);
      }
    }
    __syncthreads();  // all warps have read the deltas that are now overwritten
    if (has_rows) {
      for_words(sums, [&](const float* pair, int offset) {
        write_pair(deltas + offset, {pair[0], pair[1]});
      });
    }
  }

  /// Write the gradient of the net's inputs, for the rows of a tile that are in the batch.
  void store_input_gradient(int first, int tile_rows) const {
    const int column = static_cast<int>(threadIdx.x % kWidth);
    const int end = first + tile_rows;
    for (int row = first + static_cast<int>(threadIdx.x / kWidth); row < end;
         row += kThreads / kWidth) {
      if (first_row + row < step.batch && column < step.inputs) {
        step.results[(first_row + row) * step.inputs + column] =
            state[tile_offset<kWidth>(row, column / 8) + column % 8];
      }
    }
  }

  /// Propagate the gradient of the outputs to all weights and add the result to the block's
  /// gradients; return whether all are finite.
  bool go_backward(float4* gradients, bool is_first) const {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int last = step.layers - 1;
    const bool wants_inputs = Kind::kObjective == Objective::kGradient && step.results != nullptr;
    bool finite = true;
    int fetched = 0;  // number of tiles fetched; the two tiles alternate
    for (int layer = last; layer >= 0; --layer) {
      const bool goes_on = layer > 0 || wants_inputs;
      float4* const place = gradients + (layer * kWarps + warp) * Place<kWidth>::kSize;
      Unit<kWidth> unit = load_unit<kWidth>(place, is_first);
      for (int row = 0; row < rows; row += kTileRows) {
        wait_for_copies();
        __syncthreads();  // all warps have read the memory that is now overwritten
        const bool wants_weights = goes_on && row == 0 && layer < last;
        if (wants_weights) {
          fetch_weights(layer, weights);
          commit_copies();
        }
        const T* const inputs = tiles + fetched % 2 * kTile;
        T* const next = tiles + ++fetched % 2 * kTile;
        if (row + kTileRows < rows) {
          fetch_tile(layer, row + kTileRows, next);
        } else if (layer > 0) {
          fetch_tile(layer - 1, 0, next);
        }
        T* const deltas = state + row * kWidth;
        add_products<T, kWidth, kShareRows>(unit, deltas, inputs, rows_of_tile(row), warp);
        if (wants_weights) {
          wait_for_committed();
          __syncthreads();
        }
        if (goes_on) {
          take_back(layer, deltas, inputs, rows_of_tile(row));
        }
        if (layer == 0 && wants_inputs) {
          __syncthreads();
          store_input_gradient(row, rows_of_tile(row));
        }
      }
      finite &= store_unit(place, unit);
    }
    return finite;
  }
};

template <typename T, typename Kind>
__global__ void __launch_bounds__(kThreads, 1)
    spilled_kernel(const __grid_constant__ Step<T, Kind> step) {
  using Block = Spilled<T, Kind>;
  const Progress progress = find_progress(step);
  announce(step, progress);
  Block block(step, find_batch(step, progress));
  take_rows(block, progress);
}

}  // namespace convtime::mlp
