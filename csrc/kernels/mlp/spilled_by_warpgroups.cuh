#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/objectives.cuh"
#include "kernels/mlp/step.cuh"
#include "kernels/mlp/warpgroups.cuh"

// The training step of a net of any depth whose layers do not fit on chip together, with the
// instructions of sm_90a. A block holds one state of up to 512 rows of the batch in shared memory,
// and takes it through one layer after the other, in place. Its two warpgroups take 64 rows at a
// time. The tensor cores read the operands of a product from shared memory themselves:
//
//   1. Forward, the state is each layer's output. Each warpgroup takes every other 64 rows through
//      the layer, without waiting for the other one. While it applies the activation, the other one
//      computes. It also writes the rows to device memory, except for the last layer.
//   2. The loss replaces the outputs by their gradient.
//   3. Backward, 128 rows at a time, the state is the gradient of each layer's output. Each
//      warpgroup accumulates half of the gradients of the layer's weights, and computes the
//      gradient of the inputs of 64 rows. While it applies the derivative to these, the products
//      run for the weight gradients of the next rows.
//
// Activations go to device memory and back in their layout in shared memory, by bulk copies. A
// second kernel sums the blocks' gradients.

namespace convtime::mlp {

/// 128 columns, in two tiles of 64 whose rows are spread over the banks.
template <int kRows>
struct TwoTiles {
  static constexpr int kBytes = kRows * 128;  // of a tile
  static int offset(int row, int chunk) {
    return chunk / 8 * (kRows * 64) + tile_offset<64>(row, chunk % 8);
  }
};

template <typename T, typename Kind_>
struct Warpgroups {
  using Kind = Kind_;
  static constexpr int kWidth = kSpilledSizes.width;
  static constexpr int kMatrix = kWidth * kWidth;
  static constexpr int kGroups = kThreads / kGroupThreads;
  static constexpr int kRows = 64;  // of a warpgroup
  static constexpr int kTileRows = kGroups * kRows;
  static constexpr int kPieceBytes = kRows * 128;  // of 64 rows and 64 columns
  static constexpr int kStepBytes = 16 * 128;      // of the rows that an instruction sums over
  static constexpr int kColumnBytes = 16 * 2;      // of the columns that an instruction sums over
  using State = TwoTiles<kSpilledSizes.state_rows>;
  using Tile = TwoTiles<kTileRows>;
  static_assert(kTileRows == kSpilledSizes.tile_rows && kTileRows == kWidth && sizeof(T) == 2);

  const Step<T, Kind>& step;
  const Batch<T> batch;
  unsigned char* const state;
  unsigned char* const weights;
  unsigned char* const tiles;     // inputs of a layer, two tiles
  std::uint64_t* const arrivals;  // a barrier for each of the two
  float* const losses;
  const int group = group_number();
  const bool leads = threadIdx.x % kGroupThreads == 0;  // the thread that copies for the warpgroup

  std::int64_t first_row = 0;  // first row of the state in the batch
  int rows = 0;                // rows of the state: a multiple of kTileRows
  int parities = 0;            // of the phases that the barriers are in

  Warpgroups(const Step<T, Kind>& s, const Batch<T>& b)
      : step(s),
        batch(b),
        state(shared_memory()),
        weights(state + 2 * State::kBytes),
        tiles(weights + 2 * Tile::kBytes),
        arrivals(reinterpret_cast<std::uint64_t*>(tiles + 4 * Tile::kBytes)),
        losses(reinterpret_cast<float*>(arrivals + 2)) {}

  unsigned char* tile(int index) const { return tiles + index % 2 * 2 * Tile::kBytes; }

  // --- Copies

  /// Copy rows of an array of that many columns, which ends before `end_row`; all else is zero.
  template <typename Places, bool kInVectors>
  void copy_rows_of(const T* from, int columns, std::int64_t from_row, std::int64_t end_row,
                    int count, unsigned char* to) const {
    T* const target = reinterpret_cast<T*>(to);
    if constexpr (kInVectors) {
      constexpr int kChunks = kWidth / 8;
      const int chunk = static_cast<int>(threadIdx.x % kChunks);
#pragma unroll 2
      for (int row = static_cast<int>(threadIdx.x / kChunks); row < count;
           row += kThreads / kChunks) {
        T* const place = target + Places::offset(row, chunk);
        if (from_row + row < end_row && 8 * chunk < columns) {
          copy_async(place, from + (from_row + row) * columns + 8 * chunk);
        } else {
          *reinterpret_cast<uint4*>(place) = uint4{};
        }
      }
    } else {
      const int column = static_cast<int>(threadIdx.x % kWidth);
      for (int row = static_cast<int>(threadIdx.x / kWidth); row < count;
           row += kThreads / kWidth) {
        const bool is_there = from_row + row < end_row && column < columns;
        target[Places::offset(row, column / 8) + column % 8] =
            is_there ? from[(from_row + row) * columns + column] : T(0.0F);
      }
    }
  }

  void fetch_weights(int layer, unsigned char* to) const {
    copy_rows_of<Tile, true>(step.weights + static_cast<std::size_t>(layer) * kMatrix, kWidth, 0,
                             kWidth, kWidth, to);
  }

  /// Let products see all earlier copies and writes by the block's threads.
  void receive() const {
    wait_for_copies();
    publish_to_async();
    __syncthreads();
  }

  /// Return where a layer's inputs are kept: the warpgroup's rows of the state's tile that starts
  /// at `row`, and 64 of their columns.
  unsigned char* kept(int layer, int row, int half) const {
    const std::int64_t tiles_of_batch = (step.batch + kTileRows - 1) / kTileRows;
    const std::int64_t which = (layer - 1) * tiles_of_batch + (first_row + row) / kTileRows;
    return reinterpret_cast<unsigned char*>(step.spilled) +
           ((which * kGroups + group) * 2 + half) * kPieceBytes;
  }

  /// Write the warpgroup's rows of that tile to device memory.
  void spill(int layer, int row) const {
    if (leads) {
      const unsigned char* const from = state + (row + group * kRows) * 128;
      for (int half = 0; half < 2; ++half) {
        copy_out(kept(layer, row, half), from + half * State::kBytes, kPieceBytes);
      }
      commit_copies_out();
    }
  }

  // Tiles alternate between two memories. First come the targets, which count as the inputs of a
  // layer after the last one, then the inputs of the last layer, and so on to the first.

  /// Fetch the targets' tile that starts at `row` of the state, unless they are classes.
  void fetch_targets(int row, int index) const {
    if constexpr (Kind::kObjective == Objective::kMse || Kind::kObjective == Objective::kGradient) {
      copy_rows_of<Tile, Kind::kTargetLanes == 8>(static_cast<const T*>(batch.targets),
                                                  step.outputs, first_row + row, step.batch,
                                                  kTileRows, tile(index));
    }
  }

  /// Fetch the tile of a layer's inputs that starts at `row` of the state. Each warpgroup fetches
  /// the rows that it spilled itself.
  void fetch_inputs(int layer, int row, int index) const {
    if (layer == 0) {
      copy_rows_of<Tile, Kind::kVectorInputs>(batch.inputs, step.inputs, first_row + row,
                                              step.batch, kTileRows, tile(index));
    } else if (leads) {
      wait_for_copies_out();
      std::uint64_t* const barrier = arrivals + index % 2;
      arrive_expecting(barrier, 2 * kPieceBytes);
      for (int half = 0; half < 2; ++half) {
        copy_in(tile(index) + half * Tile::kBytes + group * kPieceBytes, kept(layer, row, half),
                kPieceBytes, barrier);
      }
    }
  }

  /// Fetch the tile that comes so many after that one, into the memory of the tile with that index.
  template <bool kAfterTargets>
  void fetch_ahead(int count, int layer, int row, int index) const {
    for (; count > 0; --count) {
      row += kTileRows;
      if (row >= rows) {
        row = 0;
        --layer;
      }
    }
    if (kAfterTargets && layer == step.layers) {
      fetch_targets(row, index);
    } else if (layer >= 0) {
      fetch_inputs(layer, row, index);
    }
  }

  /// Wait for a tile, after which the block's threads have to be synchronized.
  void await_tile(int layer, int index) {
    if (layer == 0 || layer == step.layers) {
      wait_for_copies();
      publish_to_async();
    } else {
      wait_for_phase(arrivals + index % 2, parities >> index % 2 & 1);
      parities ^= 1 << index % 2;
    }
  }

  /// Return the lane's share of the warpgroup's rows of a tile.
  Pairs<kWidth> read_tile(int index) const {
    Pairs<kWidth> pairs;
    for_words<Tile>(tile(index), group * kRows, [&](int j, int half, const std::uint32_t* word) {
      pairs.word[j][half] = *word;
    });
    return pairs;
  }

  // --- Products

  /// Start sums = state · weightsᵀ for the forward pass, or state · weights for the backward pass,
  /// for 64 rows of the state.
  template <bool kBackward>
  void start_rows(Sums<kWidth>& sums, int row, const unsigned char* matrix) const {
    begin_products();
    const std::uint64_t left = describe_operand(state + row * 128, 0);
    const std::uint64_t right = describe_operand(matrix, kBackward ? Tile::kBytes : 0);
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const int half = k / 4;
      const int columns = k % 4 * kColumnBytes;
      start_product<T, false, kBackward>(sums, left, half * State::kBytes + columns, right,
                                         kBackward ? k * kStepBytes : half * Tile::kBytes + columns,
                                         k > 0);
    }
    commit_products();
  }

  /// Start sums += deltasᵀ · inputs over a tile's rows: the warpgroup's half of the layer's weight
  /// gradients.
  void start_gradients(Sums<kWidth>& sums, int row, const unsigned char* inputs) const {
    begin_products();
    const std::uint64_t left = describe_operand(state + group * State::kBytes + row * 128, 0);
    const std::uint64_t right = describe_operand(inputs, Tile::kBytes);
#pragma unroll
    for (int k = 0; k < kTileRows / 16; ++k) {
      start_product<T, true, true>(sums, left, k * kStepBytes, right, k * kStepBytes, true);
    }
    commit_products();
  }

  // --- A lane's share of a warpgroup's 64 rows: the share of Sums, for 16 rows of each warp

  static int warp_row() { return static_cast<int>(threadIdx.x % kGroupThreads / 32) * kWarpRows; }

  /// Call function(j, half, word) for the pairs of a lane's sums, where word is the pair's place in
  /// two tiles.
  template <typename Places, typename Function>
  static void for_words(unsigned char* rows_of_tile, int row, const Function& function) {
    T* const begin = reinterpret_cast<T*>(rows_of_tile);
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      T* const place =
          begin + Places::offset(row + warp_row() + lane_id() / 4, j) + lane_id() % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        function(j, half, reinterpret_cast<std::uint32_t*>(place + half * 8 * 64));
      }
    }
  }

  /// Replace the warpgroup's rows of the state. Its products have ended; the caller publishes.
  void store_state(const Sums<kWidth>& sums, int row) const {
    for_words<State>(state, row, [&](int j, int half, std::uint32_t* word) {
      *word = pack<T>(sums.value[j][2 * half], sums.value[j][2 * half + 1]);
    });
  }

  // --- Forward

  /// The weights alternate between their own memory and the second tile's. The last layer's are in
  /// their own memory, because the backward pass starts with them.
  unsigned char* forward_weights(int layer) const {
    return (step.layers - 1 - layer) % 2 == 0 ? weights : tile(1);
  }

  /// Compute the layer's sums of 64 rows.
  void take_forward(Sums<kWidth>& sums, int layer, int row) const {
    start_rows<false>(sums, row, forward_weights(layer));
    wait_for_products();
    use_after_wait(sums);
  }

  /// Set to zero what belongs to rows beyond the batch.
  void clear_beyond_batch(Sums<kWidth>& sums, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane_row(first_row + row + warp_row(), half) >= step.batch) {
#pragma unroll
        for (auto& four : sums.value) {
          four[2 * half] = four[2 * half + 1] = 0;
        }
      }
    }
  }

  /// Wait until no product of the warpgroup reads these rows, and no copy to device memory.
  void free_rows() const {
    if (leads) {
      if (rows > kTileRows) {
        wait_until_read<1>();  // the last copy is of other rows
      } else {
        wait_until_read<0>();
      }
    }
    synchronize_group(group);
  }

  /// Start to copy the batch's rows. The first two layers' weights arrive with their first tile.
  void fetch_rows() const {
    fetch_weights(0, forward_weights(0));
    if (step.layers > 1) {
      fetch_weights(1, forward_weights(1));
    }
    for (int row = 0; row < rows; row += kTileRows) {
      copy_rows_of<State, Kind::kVectorInputs>(batch.inputs, step.inputs, first_row + row,
                                               step.batch, kTileRows, state + row * 128);
      commit_copies();
    }
  }

  /// Wait for the tile that starts at `row`.
  void receive_rows(int row) const {
    wait_for_copies_before(rows / kTileRows - 1 - row / kTileRows);
    publish_to_async();
    __syncthreads();
  }

  /// Replace the state by the inputs of the last layer. The targets' first tile is on its way
  /// afterwards.
  void take_hidden_layers() const {
    const int last = step.layers - 1;
    fetch_rows();
    Sums<kWidth> sums;
    for (int layer = 0; layer < last; ++layer) {
      if (layer > 0) {
        receive();
        fetch_weights(layer + 1, forward_weights(layer + 1));
      }
      for (int tile_row = 0; tile_row < rows; tile_row += kTileRows) {
        if (layer == 0) {
          receive_rows(tile_row);
        }
        if (layer == 0 && tile_row == 0) {  // waits only for inputs
          prefetch(step, batch.targets, step.target_bytes, first_row);
        }
        if (layer == last - 1 && tile_row + kTileRows == rows) {
          fetch_targets(0, 0);
        }
        const int row = tile_row + group * kRows;
        take_forward(sums, layer, row);
        activate<Kind::kActivation>(sums);
        if (first_row + row + kRows > step.batch) {
          clear_beyond_batch(sums, row);
        }
        free_rows();
        store_state(sums, row);
        publish_to_async();
        synchronize_group(group);
        if constexpr (Kind::kKeeps) {
          spill(layer + 1, tile_row);
        }
      }
    }
    if (last == 0) {
      fetch_targets(0, 0);
    }
  }

  /// Replace the state by the outputs' gradient; return the lane's share of the loss. The last
  /// layer's first two tiles are on their way afterwards.
  float take_loss(float scale) {
    float loss = 0;
    Sums<kWidth> sums;
    receive();
    if constexpr (Kind::kKeeps) {
      fetch_ahead<true>(1, step.layers, 0, 1);
    }
    for (int index = 0; index < rows / kTileRows; ++index) {
      const int tile_row = index * kTileRows;
      const int row = tile_row + group * kRows;
      if constexpr (Kind::kObjective != Objective::kGradient) {  // which does not depend on outputs
        take_forward(sums, step.layers - 1, row);
      }
      loss += differentiate(sums, step, batch, first_row + row + warp_row(), scale,
                            [&] { return read_tile(index); });
      if constexpr (Kind::kKeeps) {
        free_rows();
        store_state(sums, row);
        if (tile_row + kTileRows < rows) {
          await_tile(step.layers, index + 1);
        }
        __syncthreads();  // all have read this tile
        fetch_ahead<true>(2, step.layers, tile_row, index);
      }
    }
    return loss;
  }

  /// Compute the gradient of the outputs from the inputs; return the lane's share of the loss.
  float go_forward(float scale) {
    take_hidden_layers();
    return take_loss(scale);
  }

  // --- Backward

  /// Multiply by the derivative, computed from the activation's outputs.
  void differentiate_back(Sums<kWidth>& sums, const Pairs<kWidth>& activated) const {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 y = unpack<T>(activated.word[j][half]);
        float* const pair = sums.value[j] + 2 * half;
        pair[0] = differentiated<Kind::kActivation>(pair[0], y.x);
        pair[1] = differentiated<Kind::kActivation>(pair[1], y.y);
      }
    }
  }

  /// Return the place of a lane's four sums j among the layer's gradients.
  float4* place_of(float4* of_layer, int j) const {
    const int half = group * 4 + warp_row() / kWarpRows;  // of 16 rows
    const int unit = half / 2 * (kWidth / Place<kWidth>::kUnitColumns) + j / 8;
    return of_layer + unit * Place<kWidth>::kSize + (half % 2 * 8 + j % 8) * 32 + lane_id();
  }

  Sums<kWidth> load_gradients(float4* of_layer, bool is_first) const {
    Sums<kWidth> sums;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const float4 four = is_first ? float4{} : *place_of(of_layer, j);
      sums.value[j][0] = four.x;
      sums.value[j][1] = four.y;
      sums.value[j][2] = four.z;
      sums.value[j][3] = four.w;
    }
    return sums;
  }

  /// Return whether all of the lane's values are finite.
  bool store_gradients(float4* of_layer, const Sums<kWidth>& sums) const {
    float check = 0;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const auto& four = sums.value[j];
      *place_of(of_layer, j) = make_float4(four[0], four[1], four[2], four[3]);
      check += 0 * four[0] + 0 * four[1] + 0 * four[2] + 0 * four[3];  // NaN unless all are finite
    }
    return check == 0;
  }

  /// Write the gradient of the net's inputs, for the rows that are in the batch.
  void store_input_gradient() const {
    const T* const values = reinterpret_cast<const T*>(state);
    const int column = static_cast<int>(threadIdx.x % kWidth);
    for (int row = static_cast<int>(threadIdx.x / kWidth); row < rows; row += kThreads / kWidth) {
      if (first_row + row < step.batch && column < step.inputs) {
        step.results[(first_row + row) * step.inputs + column] =
            values[State::offset(row, column / 8) + column % 8];
      }
    }
  }

  /// Start the gradients of the layer's inputs for the warpgroup's rows of a tile; return these
  /// rows of the inputs.
  Pairs<kWidth> start_back(Sums<kWidth>& of_rows, int row, int index) const {
    start_rows<true>(of_rows, row + group * kRows, weights);
    return read_tile(index);
  }

  void finish_back(Sums<kWidth>& of_rows, const Pairs<kWidth>& inputs, int layer, int row) const {
    if (layer > 0) {
      differentiate_back(of_rows, inputs);
    }
    store_state(of_rows, row + group * kRows);
  }

  /// Propagate the gradient of a layer's outputs to its weights, and to its inputs if kGoesOn;
  /// return whether the gradients are finite. `index` is that of the first tile over all layers.
  template <bool kGoesOn>
  bool take_back(int layer, int index, float4* of_layer, bool is_first) {
    Sums<kWidth> of_weights = load_gradients(of_layer, is_first);
    Sums<kWidth> of_rows;
    Pairs<kWidth> inputs;
    await_tile(layer, index);
    publish_to_async();  // the state's new values
    __syncthreads();
    start_gradients(of_weights, 0, tile(index));
    if (kGoesOn) {
      receive();  // the layer's weights
    }
    const auto end_products = [&](int row) {
      if (kGoesOn) {
        inputs = start_back(of_rows, row, index);
      }
      wait_for_products();
      use_after_wait(of_weights);
      use_after_wait(of_rows);
    };
    int row = 0;
    for (; row + kTileRows < rows; row += kTileRows, ++index) {
      end_products(row);
      await_tile(layer, index + 1);
      __syncthreads();  // no product reads these rows and this tile any more
      fetch_ahead<false>(2, layer, row, index);
      start_gradients(of_weights, row + kTileRows, tile(index + 1));
      if (kGoesOn) {
        finish_back(of_rows, inputs, layer, row);
      }
    }
    end_products(row);
    __syncthreads();
    fetch_ahead<false>(2, layer, row, index);
    if (layer > 1 || (layer == 1 && wants_inputs())) {
      fetch_weights(layer - 1, weights);
    }
    if (kGoesOn) {
      finish_back(of_rows, inputs, layer, row);
    }
    return store_gradients(of_layer, of_weights);
  }

  bool wants_inputs() const {
    return Kind::kObjective == Objective::kGradient && step.results != nullptr;
  }

  /// Propagate the gradient of the outputs to all weights and add the result to the block's
  /// gradients; return whether all are finite.
  bool go_backward(float4* gradients, bool is_first) {
    const int tiles_of_layer = rows / kTileRows;
    bool finite = true;
    int index = tiles_of_layer;  // after the targets
    int layer = step.layers - 1;
    for (; layer >= (wants_inputs() ? 0 : 1); --layer, index += tiles_of_layer) {
      finite &= take_back<true>(layer, index, gradients + layer * (kMatrix / 4), is_first);
    }
    if (wants_inputs()) {
      __syncthreads();
      store_input_gradient();
    } else {
      finite &= take_back<false>(0, index, gradients, is_first);
    }
    return finite;
  }
};

template <typename T, typename Kind>
__global__ void __launch_bounds__(kThreads, 1)
    spilled_by_warpgroups_kernel(const __grid_constant__ Step<T, Kind> step) {
  using Block = Warpgroups<T, Kind>;
  const Progress progress = find_progress(step);
  announce(step, progress);
  Block block(step, find_batch(step, progress));
  if (threadIdx.x < 2) {
    prepare_barrier(block.arrivals + threadIdx.x, Block::kGroups);
  }
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
    block.rows = (rows + Block::kTileRows - 1) / Block::kTileRows * Block::kTileRows;
    __syncthreads();  // all warps are done with the previous state
    loss += block.go_forward(progress.scale * step.loss_factor);
    if constexpr (Kind::kKeeps) {
      finite &= block.go_backward(gradients, row == begin);
    }
  }
  if constexpr (Kind::kKeeps) {
    tell(step, loss, finite, block.losses, step.reports + blockIdx.x);
  }
}

}  // namespace convtime::mlp
