#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"
#include "kernels/element_type.h"
#include "kernels/mlp/training.h"
#include "program/nvrtc.h"

namespace convtime {

// Training of multi-layer perceptrons on tensor cores. The functions below keep weights and the
// activations of a tile of the batch on chip; wide.h is for nets that are too wide for that. Sums
// are computed in a fixed order, so results are bitwise reproducible. Launches throw
// std::runtime_error if CUDA refuses them; they do not allocate and do not synchronize, but compile
// the kernels that they are the first to need.

/// Layers with the activation between them. Each layer has a dense width × width matrix, whose rows
/// are its outputs, followed by a row of biases if `bias`. For a narrower layer, the rest of its
/// matrix is zero.
struct MlpNet {
  ElementType type;  // on chip, a 16-bit type; not kDouble
  MlpActivation activation;
  int width;    // on chip, 16, 32, 64 or 128; otherwise 16, 32 or a multiple of 64
  int layers;   // at least 1
  int inputs;   // of the first layer, at most width
  int outputs;  // of the last layer, at most width
  bool bias;    // not supported on chip
  bool tf32;    // allow TF32 (19 bits) in 32-bit products
};

/// Dense arrays with one row per example, one batch after the other: `batch` × `batches` rows.
struct MlpData {
  const void* inputs;   // per row, `inputs` values of the net's type
  const void* targets;  // per row, `outputs` values of the net's type, or one 64-bit class
  MlpLoss loss;
  std::int64_t batch;
  std::int64_t batches;
};

/// Return whether the functions below have a kernel for steps of `batch` rows on the current
/// device: for nets that it can hold on chip, and on compute capability 9.0 for deeper ones of
/// width 128.
CONVTIME_API bool mlp_fits(const MlpNet& net, std::int64_t batch);

/// Return the size of the scratch memory for batches of `batch` rows.
CONVTIME_API std::size_t mlp_scratch_bytes(const MlpNet& net, std::int64_t batch);

/// Return descriptions of the ways to divide a training step's work on the current device; the
/// first is likely to be the fastest.
CONVTIME_API std::vector<std::string> mlp_plans(const MlpNet& net, std::int64_t batch);

/// Return the programs that training steps of a net may need on a GPU of that compute capability
/// (90 for 9.0), whatever the plan and the arrays' alignment.
CONVTIME_API std::vector<ProgramSource> mlp_training_programs(const MlpNet& net, MlpLoss loss,
                                                              MlpOptimizer optimizer,
                                                              bool has_master, int capability);

/// The same for forward and backward passes.
CONVTIME_API std::vector<ProgramSource> mlp_pass_programs(const MlpNet& net, int capability);

/// Run training steps. Step i uses batch i % batches, where i is the first counter. If the plan is
/// one cluster of blocks, one launch runs all steps; otherwise each step takes two launches.
CONVTIME_API void launch_mlp_steps(const MlpNet& net, const MlpData& data, const MlpRule& rule,
                                   const MlpScaling& scaling, const MlpState& state, void* scratch,
                                   int steps, int plan, cudaStream_t stream);

/// Compute outputs of shape (rows, outputs) from inputs of shape (rows, inputs).
CONVTIME_API void launch_mlp_forward(const MlpNet& net, const void* weights, const void* inputs,
                                     void* outputs, std::int64_t rows, cudaStream_t stream);

/// Compute the weights' gradient from the outputs' gradient, and the inputs' gradient unless
/// `grad_inputs` is null. Runs the forward pass again, so that no activations need to be kept.
CONVTIME_API void launch_mlp_backward(const MlpNet& net, const void* weights, const void* inputs,
                                      const void* grad_outputs, void* grad_inputs,
                                      void* grad_weights, std::int64_t rows, void* scratch,
                                      cudaStream_t stream);

}  // namespace convtime
