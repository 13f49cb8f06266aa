#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>

#include "kernels/element_type.h"

struct cublasLtContext;

namespace convtime::mlp {

/// What cuBLASLt does to a product as it writes it.
enum class Epilogue : std::int8_t {
  kNone,
  kBias,
  kRelu,
  kReluBias,
};

/// d = a · b, as cuBLASLt has matrices: column after column.
struct Matmul {
  ElementType type;    // of a, b and the bias
  ElementType result;  // of d
  bool tf32;           // whether floats may be rounded to 19 bits
  bool transpose_a;
  bool transpose_b;
  std::int64_t m;  // rows of d
  std::int64_t n;  // columns of d
  std::int64_t k;
  std::int64_t lda;
  std::int64_t ldb;
  std::int64_t ldd;
  Epilogue epilogue = Epilogue::kNone;
  int count = 1;  // of such products, so many numbers apart:
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_d = 0;

  friend auto operator<=>(const Matmul&, const Matmul&) = default;
};

/// All aligned to 16 bytes.
struct Operands {
  const void* a;
  const void* b;
  void* d;
  const void* bias = nullptr;  // a number for each row of d
};

/// How a product's algorithm is chosen.
enum class Choosing : std::int8_t {
  kFirst,  // what cuBLASLt suggests first
  kTuned,  // what was found fastest, if that was looked for
  kTune,   // looks for the fastest, unless that is known
};

/// cuBLASLt on a stream. Choices are kept for the process, by device; sums are made in 32 bits and
/// in a fixed order.
class BlasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  /// The workspace has kWorkspaceBytes.
  BlasLt(cublasLtContext* handle, void* workspace, Choosing choosing, cudaStream_t stream)
      : handle_(handle), workspace_(workspace), choosing_(choosing), stream_(stream) {}

  /// Whether cuBLASLt has an algorithm for it.
  static bool can_multiply(cublasLtContext* handle, const Matmul& matmul);

  /// Throws std::runtime_error where cuBLASLt cannot.
  void multiply(const Matmul& matmul, const Operands& operands) const;

 private:
  cublasLtContext* handle_;
  void* workspace_;
  Choosing choosing_;
  cudaStream_t stream_;
};

}  // namespace convtime::mlp
