#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  bool tuned;               // use the algorithms that MlpWideProducts::choose() set
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

/// The distinct products of a training step, with the algorithms that cuBLASLt suggests for each.
class CONVTIME_API MlpWideProducts {
 public:
  /// Run the step's products once. This and run() read the weights and the first batch, which must
  /// outlive this, and write only to scratch memory.
  MlpWideProducts(const MlpWide& wide, const MlpNet& net, const void* weights, const void* inputs,
                  std::int64_t batch, bool has_master, void* scratch);
  ~MlpWideProducts();
  MlpWideProducts(const MlpWideProducts&) = delete;
  MlpWideProducts& operator=(const MlpWideProducts&) = delete;

  /// Return the number of algorithms of each product; 1 if choose() was called for it.
  std::vector<std::int64_t> algorithms() const;

  /// Run a product with an algorithm. Throws std::out_of_range for others than algorithms().
  void run(std::size_t product, std::size_t algorithm, cudaStream_t stream) const;

  /// Set the algorithm of a product for all nets on this device, for the life of the process.
  void choose(std::size_t product, std::size_t algorithm) const;

 private:
  struct Suggested;
  std::unique_ptr<Suggested> suggested_;
};

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
