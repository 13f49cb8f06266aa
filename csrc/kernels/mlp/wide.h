#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/export.h"
#include "kernels/mlp/mlp.h"

struct cublasLtContext;

namespace convtime {

// Training of multi-layer perceptrons of any width, depth and type, with biases or without:
// products by cuBLASLt, a kernel for what is between them where cuBLASLt cannot do it as it goes.
// Otherwise as mlp.h has it.

/// What the caller gives, and what products are chosen by.
struct MlpWide {
  cublasLtContext* cublas;  // a cublasLtHandle_t
  bool tuned;               // whether products run as tune_mlp_wide() found them fastest
  cudaStream_t stream;
};

/// What scratch memory is for.
enum class MlpWork : std::int8_t { kForward, kBackward, kTraining };

/// Of the scratch memory for batches of so many rows, which begins as zeros for training.
CONVTIME_API std::size_t mlp_wide_scratch_bytes(const MlpNet& net, std::int64_t batch,
                                                MlpWork work);

/// Whether cuBLASLt applies the activation to its products as it writes them; else, as always with
/// its derivative, that is a kernel after each.
CONVTIME_API bool mlp_wide_fuses_activation(const MlpNet& net, std::int64_t batch,
                                            cublasLtContext* cublas);

/// Times what cuBLASLt suggests for each product of a training step, unless that is known. Reads
/// the weights and the first batch, writes to scratch memory alone, and waits for the device.
CONVTIME_API void tune_mlp_wide(const MlpWide& wide, const MlpNet& net, const void* weights,
                                const void* inputs, std::int64_t batch, bool has_master,
                                void* scratch);

CONVTIME_API void launch_mlp_wide_steps(const MlpWide& wide, const MlpNet& net, const MlpData& data,
                                        const MlpRule& rule, const MlpScaling& scaling,
                                        const MlpState& state, void* scratch, int steps);

/// Of (rows, inputs) gives (rows, outputs).
CONVTIME_API void launch_mlp_wide_forward(const MlpWide& wide, const MlpNet& net,
                                          const void* weights, const void* inputs, void* outputs,
                                          std::int64_t rows, void* scratch);

/// As launch_mlp_backward; the gradient of the weights begins as zeros.
CONVTIME_API void launch_mlp_wide_backward(const MlpWide& wide, const MlpNet& net,
                                           const void* weights, const void* inputs,
                                           const void* grad_outputs, void* grad_inputs,
                                           void* grad_weights, std::int64_t rows, void* scratch);

}  // namespace convtime
