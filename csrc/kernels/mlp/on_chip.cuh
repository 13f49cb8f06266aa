#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/objectives.cuh"
#include "kernels/mlp/step.cuh"

// The training step of a net that fits on chip. A block holds all weights in shared memory and
// processes the tiles of the batch one after the other:
//
//   1. Each warp takes 16 rows of the tile forward through all layers, computes the loss and its
//      gradient, and propagates the gradient back through the layers, without waiting for other
//      warps. It leaves each layer's input and the gradient of each layer's output in shared
//      memory.
//   2. The warps share the weight gradients of all layers, in units. Each unit is a product over
//      the tile's rows and is added to the sum of earlier tiles.
//
// After the last tile the blocks' gradients are summed in a fixed order, and the weights are
// updated. If one cluster of blocks is enough for the batch, the same launch does this with
// distributed shared memory. Otherwise a second kernel does it with device memory.

namespace convtime::mlp {

/// How a block divides its shared memory.
template <typename T, int W, typename Kind>
struct Shared {
  T* weights;
  T* inputs;  // of each layer, for one tile of the batch
  T* deltas;  // gradients of each layer's outputs, before its activation
  float4* gradients;
  Report* report;
  float* losses;  // of each warp

  explicit Shared(const Step<T, Kind>& step) {
    const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
    const std::size_t layers = step.layers;
    constexpr bool kSums = Kind::kGathering != Gathering::kDevice;
    weights = reinterpret_cast<T*>(shared_memory());
    inputs = weights + layers * W * W;
    deltas = inputs + (Kind::kKeeps ? layers : 1) * tile;
    gradients = reinterpret_cast<float4*>(deltas + (Kind::kKeeps ? layers : 0) * tile);
    report = reinterpret_cast<Report*>(gradients + (kSums ? layers * W * W / 4 : 0));
    losses = reinterpret_cast<float*>(report + 1);
  }
};

/// Whether a thread has registers to load data long before their use.
template <int W>
constexpr bool kLoadsEarly = W < 128;

// --- The two halves of a tile

/// Take 16 rows of a tile forward and back in one warp; return the lane's share of their loss.
template <typename T, int W, typename Kind>
float take_through(const Step<T, Kind>& step, const Shared<T, W, Kind>& shared,
                   const Batch<T>& batch, std::int64_t tile_row, int row, float scale) {
  const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
  const std::int64_t first_row = tile_row + row;
  const int last = step.layers - 1;

  const auto load_targets = [&] {
    return load_pairs<T, W>(step, static_cast<const T*>(batch.targets), first_row);
  };
  Pairs<W> targets;
  if constexpr (kLoadsEarly<W> &&
                (Kind::kObjective == Objective::kMse || Kind::kObjective == Objective::kGradient)) {
    targets = load_targets();
  }
  Rows<W> rows = load_rows<T, W>(shared.inputs, row);
  float loss = 0;
  for (int layer = 0; layer <= last; ++layer) {
    Sums<W> sums = multiply<false>(rows, shared.weights + layer * W * W);
    if (layer < last) {
      activate<Kind::kActivation>(sums);
    } else {
      loss = differentiate(sums, step, batch, first_row, scale,
                           [&] { return kLoadsEarly<W> ? targets : load_targets(); });
    }
    rows = round_rows<T>(sums);
    if (layer < last && Kind::kKeeps) {
      store_rows(shared.inputs + (layer + 1) * tile, row, rows);
    }
  }
  if constexpr (!Kind::kKeeps) {
    return loss;
  }

  store_rows(shared.deltas + last * tile, row, rows);
  const bool wants_inputs = Kind::kObjective == Objective::kGradient && step.results != nullptr;
  for (int layer = last; layer >= (wants_inputs ? 0 : 1); --layer) {
    Sums<W> sums = multiply<true>(rows, shared.weights + layer * W * W);
    if (layer == 0) {
      store_results(sums, step, first_row, step.inputs);
      break;
    }
    multiply_by_derivative<Kind::kActivation, T>(sums, shared.inputs + layer * tile, row);
    rows = round_rows<T>(sums);
    store_rows(shared.deltas + (layer - 1) * tile, row, rows);
  }
  return loss;
}

/// Add a tile's part to the gradients of the weights; return whether all are finite.
template <typename T, int W, typename Kind>
bool add_gradients(const Step<T, Kind>& step, const Shared<T, W, Kind>& shared, float4* gradients,
                   bool is_first) {
  constexpr int kUnits = Place<W>::kUnits;
  const std::size_t tile = static_cast<std::size_t>(step.tile_rows) * W;
  bool finite = true;
  for (int i = static_cast<int>(threadIdx.x / 32); i < step.layers * kUnits; i += kWarps) {
    const std::size_t layer = i / kUnits;
    float4* const place = gradients + i * Place<W>::kSize;
    Unit<W> unit = load_unit<W>(place, is_first);
    add_products<T, W, kWarpRows>(unit, shared.deltas + layer * tile, shared.inputs + layer * tile,
                                  step.tile_rows, i % kUnits);
    finite &= store_unit(place, unit);
  }
  return finite;
}

/// Finish a step in one cluster: each block sums and updates its share of the weights.
template <typename T, int W, typename Kind>
void learn_in_cluster(const Step<T, Kind>& step, const Shared<T, W, Kind>& shared,
                      Progress& progress) {
  constexpr MlpOptimizer kOptimizer = Kind::kOptimizer;
  using Stored = std::conditional_t<Kind::kHasMaster, float, T>;
  const unsigned blocks = gridDim.x;  // a power of two
  synchronize_cluster();
  // One thread per block, because reading from another block takes long.
  const Report report = threadIdx.x < blocks ? *of_block(shared.report, threadIdx.x) : Report{};
  const bool skipped =
      __syncthreads_or(step.learning.scaling.enabled && report.overflowed != 0) != 0;
  if (!skipped) {
    const Factors factors = factors_of<kOptimizer>(step.learning.rule, progress);
    for (int place = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
         place < step.layers * W * W / 4; place += static_cast<int>(blocks * kThreads)) {
      const KeptPlace kept = read_place<T, W, Stored>(step.learning, place);  // loaded while the
                                                                              // sum is in flight
      constexpr int kAhead = most_resident(W) > 1 ? 4 : 8;  // more would take too many registers
      const float4 sum = sum_of<kAhead>(0, static_cast<int>(blocks), 1, [&](int i) {
        const unsigned block = (blockIdx.x + i) & (blocks - 1);  // each block starts with its own
                                                                 // gradients
        return of_block(shared.gradients, block)[place];
      });
      update_place<T, W, Stored, kOptimizer>(step.learning, factors, place, kept, sum);
    }
  }
  if (blockIdx.x == 0) {
    const float loss = sum_of_block(report.loss, shared.losses);
    if (threadIdx.x == 0) {
      keep_loss(step.learning, progress, loss);
    }
  }
  advance(progress, step.learning.scaling, skipped);
  synchronize_cluster();  // wait until all have read, so that the next step finds the new weights
}

template <typename T, int W, typename Kind>
__global__ void __launch_bounds__(kThreads, most_resident(W))
    step_kernel(const __grid_constant__ Step<T, Kind> step) {
  constexpr bool kIsCluster = Kind::kGathering == Gathering::kCluster;
  const Shared<T, W, Kind> shared(step);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const std::size_t slot = static_cast<std::size_t>(step.layers) * W * W / 4;
  float4* const own_slot = step.gradients + blockIdx.x * slot;  // unless it is a cluster
  float4* const gradients = Kind::kGathering == Gathering::kDevice ? own_slot : shared.gradients;
  Progress progress = find_progress(step);
  announce(step, progress);

  for (int i = 0; i < step.steps; ++i) {
    copy_full_rows<T, W>(step.weights, 0, step.layers * W, step.layers * W, shared.weights);
    const Batch<T> batch = find_batch(step, progress);
    float loss = 0;
    bool finite = true;
    const std::int64_t stride = std::int64_t{gridDim.x} * step.tile_rows;
    const std::int64_t begin = std::int64_t{blockIdx.x} * step.tile_rows;
    // Where two blocks share a multiprocessor, one computes while the other one waits.
    constexpr bool kLoadsNext =
        kLoadsEarly<W> && most_resident(W) == 1 && Kind::kKeeps && Kind::kVectorInputs;
    NextInputs<T, W, Kind> next;
    std::int64_t tile_row = begin;
    do {  // runs at least once: a block beyond the end of the batch then has zero gradients
      if (kLoadsNext && tile_row != begin) {
        next.store(step, shared.inputs);
      } else {
        copy_inputs<T, W>(step, batch, tile_row, step.tile_rows, shared.inputs);
      }
      if (tile_row == begin) {
        prefetch(step, batch.targets, step.target_bytes, tile_row);
      }
      prefetch(step, batch.inputs, step.inputs * int{sizeof(T)}, tile_row + stride);
      prefetch(step, batch.targets, step.target_bytes, tile_row + stride);
      wait_for_copies();
      __syncthreads();
      for (int row = warp * kWarpRows; row < step.tile_rows; row += kWarps * kWarpRows) {
        loss += take_through(step, shared, batch, tile_row, row, progress.scale * step.loss_factor);
      }
      __syncthreads();
      if constexpr (Kind::kKeeps) {
        if (kLoadsNext && tile_row + stride < step.batch) {
          next.load(step, batch, tile_row + stride);
        }
        finite &= add_gradients(step, shared, gradients, tile_row == begin);
        __syncthreads();
      }
      tile_row += stride;
    } while (tile_row < step.batch);
    if constexpr (!Kind::kKeeps) {
      return;
    }

    tell(step, loss, finite, shared.losses, kIsCluster ? shared.report : step.reports + blockIdx.x);
    if constexpr (kIsCluster) {
      learn_in_cluster(step, shared, progress);
    } else if constexpr (Kind::kGathering == Gathering::kChip) {
      for (std::size_t p = threadIdx.x; p < slot; p += kThreads) {
        own_slot[p] = shared.gradients[p];
      }
    }
  }
  if (kIsCluster && blockIdx.x == 0 && threadIdx.x == 0) {
    write_progress(step.learning, progress);
  }
}

}  // namespace convtime::mlp
