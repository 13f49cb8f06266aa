#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>

#include "kernels/element_type.h"

struct cublasLtContext;

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
  kTuned,  // the fastest algorithm found by tuning, if the product was tuned
  kTune,   // find the fastest unless it is known
};

/// cuBLASLt on a stream. Choices are kept per device for the life of the process; sums are computed
/// in 32 bits and in a fixed order.
class BlasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  /// The workspace must have kWorkspaceBytes.
  BlasLt(cublasLtContext* handle, void* workspace, Choosing choosing, cudaStream_t stream)
      : handle_(handle), workspace_(workspace), choosing_(choosing), stream_(stream) {}

  /// Return whether cuBLASLt has an algorithm for the product.
  static bool can_multiply(cublasLtContext* handle, const Matmul& matmul);

  /// Throws std::runtime_error if cuBLASLt has no algorithm.
  void multiply(const Matmul& matmul, const Operands& operands) const;

 private:
  cublasLtContext* handle_;
  void* workspace_;
  Choosing choosing_;
  cudaStream_t stream_;
};

}  // namespace convtime::mlp
