#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/element_type.h"

namespace convtime::mlp {

/// The epilogue that cuBLASLt applies to a product.
enum class Epilogue : std::int8_t {
  kNone,
  kBias,
  kRelu,
  kReluBias,
};

/// d = a · b, in cuBLASLt's column-major layout.
struct Matmul {
  ElementType type;    // element type of a, b and the bias
  ElementType result;  // element type of d
  bool tf32;           // allow TF32 (19 bits) for floats
  bool transpose_a;
  bool transpose_b;
  std::int64_t m;  // rows of d
  std::int64_t n;  // columns of d
  std::int64_t k;
  std::int64_t lda;
  std::int64_t ldb;
  std::int64_t ldd;
  Epilogue epilogue = Epilogue::kNone;
  int count = 1;  // number of products, separated by these strides in elements:
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_d = 0;

  friend auto operator<=>(const Matmul&, const Matmul&) = default;
};

/// Operands of a product, all aligned to 16 bytes.
struct Operands {
  const void* a;
  const void* b;
  void* d;
  const void* bias = nullptr;  // one value per row of d
};

/// How a product's algorithm is chosen.
enum class Choosing : std::int8_t {
  kFirst,  // cuBLASLt's first suggestion
  kTuned,  // the algorithm that Suggestions::choose() set for the product, if any
};

/// A product to run.
struct Product {
  Matmul matmul;
  Operands operands;
};

/// cuBLASLt on a stream. Choices are kept per device for the life of the process; sums are computed
/// in 32 bits and in a fixed order.
class BlasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  /// The workspace must have kWorkspaceBytes. `seen`, unless null, gets each product that runs.
  BlasLt(cublasLtContext* handle, void* workspace, Choosing choosing, cudaStream_t stream,
         std::vector<Product>* seen)
      : handle_(handle), workspace_(workspace), choosing_(choosing), stream_(stream), seen_(seen) {}

  /// Return whether cuBLASLt has an algorithm for the product.
  static bool can_multiply(cublasLtContext* handle, const Matmul& matmul);

  /// Throws std::runtime_error if cuBLASLt has no algorithm.
  void multiply(const Matmul& matmul, const Operands& operands) const;

 private:
  cublasLtContext* handle_;
  void* workspace_;
  Choosing choosing_;
  cudaStream_t stream_;
  std::vector<Product>* seen_;
};

/// The algorithms that cuBLASLt suggests for a product, its fastest estimate first.
class Suggestions {
 public:
  /// The workspace must have BlasLt::kWorkspaceBytes, and outlive this like the operands.
  Suggestions(cublasLtContext* handle, const Product& product, void* workspace);

  std::size_t size() const { return algorithms_.size(); }

  /// Return whether choose() set an algorithm for the product.
  bool is_chosen() const;

  /// Run the product with an algorithm.
  void run(std::size_t algorithm, cudaStream_t stream) const;

  /// Set the algorithm of all such products with Choosing::kTuned on this device.
  void choose(std::size_t algorithm) const;

 private:
  cublasLtContext* handle_;
  Product product_;
  void* workspace_;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace convtime::mlp
