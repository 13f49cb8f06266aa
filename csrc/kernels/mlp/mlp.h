#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"
#include "kernels/element_type.h"

namespace convtime {

// Training of multi-layer perceptrons on tensor cores. What is declared here has weights and
// activations of a tile of the batch on chip; wide.h has nets that are too wide for that. Sums are
// made in a fixed order: the same bits each time. Launches throw std::runtime_error where CUDA
// refuses them, allocate nothing and wait for nothing.

enum class MlpActivation : std::int8_t { kRelu, kTanh };
enum class MlpLoss : std::int8_t { kMse, kCrossEntropy };
enum class MlpOptimizer : std::int8_t { kSgd, kAdam, kAdamW };

/// Layers with the activation between them. Each has a dense width × width matrix, whose rows are
/// its outputs, and after it a row of biases if it has any; where a layer is narrower, the rest of
/// its matrix is zero.
struct MlpNet {
  ElementType type;  // on chip, one of 16 bits; not kDouble
  MlpActivation activation;
  int width;    // on chip, 64 or 128; else a multiple of 64
  int layers;   // at least 1
  int inputs;   // of the first layer, at most width
  int outputs;  // of the last layer, at most width
  bool bias;    // not on chip
  bool tf32;    // whether products of 32 bits may be rounded to 19
};

/// What one row of the arrays is, a batch after the other: `batch` rows × `batches`, dense.
struct MlpData {
  const void* inputs;   // inputs numbers of the net's type
  const void* targets;  // outputs numbers of that type, or one class in 64 bits
  MlpLoss loss;
  std::int64_t batch;
  std::int64_t batches;
};

/// As torch.optim's optimizers of these names; `momentum` is Adam's first beta.
struct MlpRule {
  MlpOptimizer optimizer;
  float momentum;
  float beta2;
  float epsilon;
  float weight_decay;
};

/// The loss is scaled before it is differentiated, and steps whose gradients overflow are skipped.
struct MlpScaling {
  bool enabled;
  int growth_interval;  // steps without overflow until the scale doubles; 0: it stays as it is
};

/// On the device, all of it. The tensors have the weights' shape; what is not used is null.
struct MlpState {
  void* weights;           // of the net's type
  float* master;           // weights in 32 bits, of which `weights` are then the rounded copy
  void* first;             // momentum, or Adam's first moment: float with master, else as weights
  void* second;            // Adam's second moment, likewise
  std::int64_t* counters;  // steps, steps skipped, steps since the scale last changed
  float* rates;            // learning rate, scale of the loss
  float* losses;           // of the last steps: that of step i at i % losses_kept
  std::int64_t losses_kept;
};

/// Whether the device in use can hold the net on chip.
CONVTIME_API bool mlp_fits(const MlpNet& net);

/// Of the scratch memory for batches of so many rows.
CONVTIME_API std::size_t mlp_scratch_bytes(const MlpNet& net, std::int64_t batch);

/// The ways to divide a training step's work on the device in use, in words; the first is likely to
/// be the fastest.
CONVTIME_API std::vector<std::string> mlp_plans(const MlpNet& net, std::int64_t batch);

/// Step i takes batch i % batches, where i is the first of the counters. Where the plan is one
/// cluster of blocks, all steps are one launch; else, each is two.
CONVTIME_API void launch_mlp_steps(const MlpNet& net, const MlpData& data, const MlpRule& rule,
                                   const MlpScaling& scaling, const MlpState& state, void* scratch,
                                   int steps, int plan, cudaStream_t stream);

/// Of (rows, inputs) gives (rows, outputs).
CONVTIME_API void launch_mlp_forward(const MlpNet& net, const void* weights, const void* inputs,
                                     void* outputs, std::int64_t rows, cudaStream_t stream);

/// From the outputs' gradient, that of the weights, and of the inputs unless that is null. Runs the
/// forward pass again, so that nothing of it has to be kept.
CONVTIME_API void launch_mlp_backward(const MlpNet& net, const void* weights, const void* inputs,
                                      const void* grad_outputs, void* grad_inputs,
                                      void* grad_weights, std::int64_t rows, void* scratch,
                                      cudaStream_t stream);

}  // namespace convtime
