#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/export.h"
#include "kernels/mlp/mlp.h"
#include "kernels/mlp/wide_arguments.h"
#include "program/nvrtc.h"

// The kernels of a wide net's training step between its products. Rows are `ld` elements apart.

namespace convtime::mlp {

/// Return the programs that training, and forward and backward passes, of a net may need, whatever
/// the arrays' alignment. `stored` is the type of the weights that the optimizer updates.
CONVTIME_API std::vector<ProgramSource> wide_programs(const MlpNet& net, ElementType stored,
                                                      MlpLoss loss, MlpOptimizer optimizer);

/// Copy `columns` columns of each row and fill the columns up to `padded` with zeros.
void launch_copy_rows(ElementType type, const void* from, std::int64_t from_ld, void* to,
                      std::int64_t to_ld, int columns, int padded, std::int64_t rows,
                      const BatchChoice& choice, cudaStream_t stream);

/// Apply the activation in place.
void launch_activation(ElementType type, MlpActivation activation, void* values, std::int64_t count,
                       cudaStream_t stream);

/// Multiply gradients by the activation's derivative, computed from the activation's output.
void launch_activation_backward(ElementType type, MlpActivation activation, void* gradients,
                                const void* activated, std::int64_t count, cudaStream_t stream);

/// Replace outputs, whose rows are `ld` apart, by their scaled gradient, and store the loss.
/// Columns after the net's outputs become zero, up to `padded` columns.
void launch_loss(const MlpNet& net, const MlpData& data, const MlpScaling& scaling,
                 const MlpState& state, void* outputs, std::int64_t ld, int padded, WideLoss* loss,
                 cudaStream_t stream);

/// Compute the gradients of the biases: sums over the rows of each layer's output gradient, stored
/// in rows of the weights' gradient, which has floats or the net's type. The last layer has
/// `last_columns` columns.
void launch_bias_gradients(const MlpNet& net, ElementType stored, const void* deltas,
                           std::int64_t rows, int last_columns, void* gradients,
                           cudaStream_t stream);

/// Run the optimizer on gradients of the stored weights' type. Skips the update if a gradient is
/// not finite and the loss is scaled. Ends the step.
void launch_learn(const MlpNet& net, const MlpRule& rule, const MlpScaling& scaling,
                  const MlpState& state, const void* gradients, WideLoss* loss,
                  cudaStream_t stream);

/// Return the number of weights and biases of all layers.
inline std::int64_t weight_count(const MlpNet& net) {
  return std::int64_t{net.layers} * (net.width + (net.bias ? 1 : 0)) * net.width;
}

}  // namespace convtime::mlp
