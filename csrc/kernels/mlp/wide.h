#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/export.h"
#include "kernels/mlp/mlp.h"

struct cublasLtContext;

namespace convtime {

// Training of multi-layer perceptrons of any width, depth and type, with or without biases.
// cuBLASLt computes the products; separate kernels compute the steps between them that cuBLASLt
// cannot fuse. Everything else is as in mlp.h.

/// The caller's handle and the choice of algorithms.
struct MlpWide {
  cublasLtContext* cublas;  // a cublasLtHandle_t
  bool tuned;               // use the algorithms that tune_mlp_wide() found fastest
  cudaStream_t stream;
};

/// The purpose of the scratch memory.
enum class MlpWork : std::int8_t { kForward, kBackward, kTraining };

/// Return the size of the scratch memory for batches of `batch` rows. For training, it must be
/// zero-initialized.
CONVTIME_API std::size_t mlp_wide_scratch_bytes(const MlpNet& net, std::int64_t batch,
                                                MlpWork work);

/// Return whether cuBLASLt fuses the activation into its products. Otherwise, and always for its
/// derivative, a kernel runs after each product.
CONVTIME_API bool mlp_wide_fuses_activation(const MlpNet& net, std::int64_t batch,
                                            cublasLtContext* cublas);

/// Time cuBLASLt's suggestions for each product of a training step, unless the fastest is known.
/// Reads the weights and the first batch, writes only to scratch memory, and synchronizes the
/// device.
CONVTIME_API void tune_mlp_wide(const MlpWide& wide, const MlpNet& net, const void* weights,
                                const void* inputs, std::int64_t batch, bool has_master,
                                void* scratch);

CONVTIME_API void launch_mlp_wide_steps(const MlpWide& wide, const MlpNet& net, const MlpData& data,
                                        const MlpRule& rule, const MlpScaling& scaling,
                                        const MlpState& state, void* scratch, int steps);

/// Compute outputs of shape (rows, outputs) from inputs of shape (rows, inputs).
CONVTIME_API void launch_mlp_wide_forward(const MlpWide& wide, const MlpNet& net,
                                          const void* weights, const void* inputs, void* outputs,
                                          std::int64_t rows, void* scratch);

/// Like launch_mlp_backward(); the weights' gradient must be zero-initialized.
CONVTIME_API void launch_mlp_wide_backward(const MlpWide& wide, const MlpNet& net,
                                           const void* weights, const void* inputs,
                                           const void* grad_outputs, void* grad_inputs,
                                           void* grad_weights, std::int64_t rows, void* scratch);

}  // namespace convtime
