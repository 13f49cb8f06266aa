#pragma once

#include <cstdint>

namespace convtime {

enum class MlpActivation : std::int8_t { kRelu, kTanh };
enum class MlpLoss : std::int8_t { kMse, kCrossEntropy };
enum class MlpOptimizer : std::int8_t { kSgd, kAdam, kAdamW };

/// Options of torch.optim's optimizers with these names; `momentum` is Adam's first beta.
struct MlpRule {
  MlpOptimizer optimizer;
  float momentum;
  float beta2;
  float epsilon;
  float weight_decay;
};

/// The loss is scaled before differentiation, and steps whose gradients overflow are skipped.
struct MlpScaling {
  bool enabled;
  int growth_interval;  // steps without overflow until the scale doubles; 0: the scale never grows
};

/// Pointers to device memory. The tensors have the weights' shape; unused pointers are null.
struct MlpState {
  void* weights;  // of the net's type
  float* master;  // 32-bit weights; if given, `weights` is their rounded copy, and replaces
                  // them where it differs from their rounding
  void* first;    // momentum, or Adam's first moment: float with `master`, otherwise the
                  // weights' type
  void* second;   // Adam's second moment, of the same type as `first`
  std::int64_t* counters;  // steps, steps skipped, steps since the scale last changed
  float* rates;            // learning rate, scale of the loss
  float* losses;           // of the last steps; step i's loss is at i % losses_kept
  std::int64_t losses_kept;
};

}  // namespace convtime
