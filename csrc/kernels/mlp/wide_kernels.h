#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/mlp/mlp.h"

// What a training step of a wide net does between its products. Rows are `ld` numbers apart.

namespace convtime::mlp {

/// Which rows of an array a step takes: the batch that the counter says, or those from the first on
/// if it is null.
struct BatchChoice {
  const std::int64_t* steps = nullptr;
  std::int64_t batches = 1;
};

/// Copies rows of so many columns, with zeros after them up to `padded` columns.
void launch_copy_rows(ElementType type, const void* from, std::int64_t from_ld, void* to,
                      std::int64_t to_ld, int columns, int padded, std::int64_t rows,
                      const BatchChoice& choice, cudaStream_t stream);

/// Applies the activation in place.
void launch_activation(ElementType type, MlpActivation activation, void* values, std::int64_t count,
                       cudaStream_t stream);

/// Multiplies gradients by the activation's derivative, from what the activation gave.
void launch_activation_backward(ElementType type, MlpActivation activation, void* gradients,
                                const void* activated, std::int64_t count, cudaStream_t stream);

/// What losses need beside the outputs. After a step, all but the partial sums is as before it.
struct WideLoss {
  static constexpr int kMostBlocks = 1024;

  float partial[kMostBlocks];  // sums of the blocks
  unsigned arrived;            // blocks
  unsigned learners_arrived;   // blocks of launch_learn
  unsigned overflowed;         // whether a gradient of the weights is not finite
};

/// Has outputs, of so many rows `ld` apart, become their scaled gradient, and keeps the loss. What
/// is after the net's outputs becomes zero up to `padded` columns.
void launch_loss(const MlpNet& net, const MlpData& data, const MlpScaling& scaling,
                 const MlpState& state, void* outputs, std::int64_t ld, int padded, WideLoss* loss,
                 cudaStream_t stream);

/// Gradients of the biases: sums over the rows of what each layer has for its outputs, into rows of
/// the weights' gradient, which is of floats or of the net's type. Of the last layer,
/// `last_columns`.
void launch_bias_gradients(const MlpNet& net, ElementType stored, const void* deltas,
                           std::int64_t rows, int last_columns, void* gradients,
                           cudaStream_t stream);

/// The optimizer, on gradients of the type that weights are kept in; skipped where a gradient is
/// not finite and the loss is scaled. Ends the step.
void launch_learn(const MlpNet& net, const MlpRule& rule, const MlpScaling& scaling,
                  const MlpState& state, const void* gradients, WideLoss* loss,
                  cudaStream_t stream);

/// Of all layers' weights and biases.
inline std::int64_t weight_count(const MlpNet& net) {
  return std::int64_t{net.layers} * (net.width + (net.bias ? 1 : 0)) * net.width;
}

}  // namespace convtime::mlp
