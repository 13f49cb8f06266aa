#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mlp/training.h"

struct float4;

// What the kernels of a step and the code that launches them share. The host does not know the
// kernels' T and passes pointers to void in its place.

namespace convtime::mlp {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostTileRows = 128;  // of step_kernel

/// Blocks of step_kernel that have enough registers on a multiprocessor. Products of narrow layers
/// are short, so that more warps are needed to hide their latency.
constexpr int most_resident(int width) { return width < 64 ? 2 : 1; }

/// Places that each block of the kernels after a step sums. Narrow nets have few places, but many
/// blocks and thus slots.
constexpr int places_of_block(int width) { return width < 64 ? 8 : 32; }

/// How spilled_by_warpgroups_kernel divides its work and its shared memory.
struct SpilledSizes {
  int width = 128;
  int state_rows = 512;
  int tile_rows = 128;  // a block's rows are a multiple of this
  // The state, a layer's weights, inputs of two tiles with a barrier each, and one loss per warp.
  std::size_t shared_bytes = std::size_t{2} * width * (state_rows + width + 2 * tile_rows) +
                             2 * sizeof(std::uint64_t) + kWarps * sizeof(float);
};
constexpr SpilledSizes kSpilledSizes{};

/// The source of the gradient that is propagated back; kNone if there is none.
enum class Objective : std::int8_t { kMse, kCrossEntropy, kGradient, kNone };

/// Where the blocks of a step sum their gradients.
enum class Gathering : std::int8_t {
  kDevice,   // in their slots of device memory
  kChip,     // in shared memory, which they copy to their slots at the end
  kCluster,  // in shared memory, from which they update the weights: they form one cluster
};

/// What a step's kernel is compiled for.
template <MlpActivation kActivation_, Objective kObjective_, bool kVectorInputs_, int kTargetLanes_,
          Gathering kGathering_, MlpOptimizer kOptimizer_, bool kHasMaster_>
struct StepKind {
  static constexpr MlpActivation kActivation = kActivation_;
  static constexpr Objective kObjective = kObjective_;
  static constexpr bool kVectorInputs = kVectorInputs_;  // rows of inputs are whole vectors
  static constexpr int kTargetLanes = kTargetLanes_;     // of targets that can be read at once: 1,
                                                         // 2 or 8
  static constexpr Gathering kGathering = kGathering_;
  static constexpr MlpOptimizer kOptimizer = kOptimizer_;  // of a cluster
  static constexpr bool kHasMaster = kHasMaster_;          // of a cluster
  static constexpr bool kTrains =
      kObjective == Objective::kMse || kObjective == Objective::kCrossEntropy;
  static constexpr bool kKeeps = kObjective != Objective::kNone;
};

/// A block's results for a step, except its gradients.
struct Report {
  float loss;
  int overflowed;  // whether any gradient is not finite
};

/// The values of counters and rates while a kernel runs.
struct Progress {
  std::int64_t steps;
  std::int64_t skipped;
  std::int64_t clean;  // steps since the scale last changed
  float learning_rate;
  float scale;
};

/// A net's state and how it is updated.
struct Learning : MlpState {
  MlpRule rule;
  MlpScaling scaling;
};

/// The argument of all kernels of a step.
template <typename T, typename Kind = void>
struct Step {
  int layers;
  int inputs;
  int outputs;
  int tile_rows;
  int steps;  // that a cluster runs
  int slots;  // one per block of the step, unless it is a cluster
  std::int64_t batch;
  std::int64_t batches;
  float loss_factor;  // factor of the sum over the batch
  int target_bytes;   // per row of targets
  const T* weights;
  const T* data;
  const void* targets;  // kGradient: the outputs' gradient; kNone: null
  T* results;           // kNone: the outputs; kGradient: the inputs' gradient or null
  T* grad_weights;      // kGradient: the result of sum_kernel
  float4* gradients;    // the slots, in the order of Place
  Report* reports;      // one per slot
  T* spilled;           // for nets that do not fit on chip: the inputs of all layers except the
                        // first
  Progress* progress;   // of learn_kernel
  Learning learning;
};

static_assert(sizeof(Report) == 8 && sizeof(Progress) == 32);
static_assert(sizeof(Learning) == 96 && sizeof(Step<void>) == 216);

}  // namespace convtime::mlp
