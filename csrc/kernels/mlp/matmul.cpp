#include "kernels/mlp/matmul.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/unique_handle.h"

namespace convtime::mlp {
namespace {

constexpr int kSuggestions = 16;
constexpr std::uint32_t kAlignment = 16;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("cuBLASLt call failed: ") + call + " returned " +
                             cublasLtGetStatusString(status));
  }
}

template <typename Handle_, cublasStatus_t (*destroy)(Handle_)>
struct DestroyedBy {
  using Handle = Handle_;
  static void release(Handle handle) noexcept { (void)destroy(handle); }
};
using Description = UniqueHandle<DestroyedBy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = UniqueHandle<DestroyedBy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    UniqueHandle<DestroyedBy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t data_type(ElementType type) {
  switch (type) {
    case ElementType::kHalf:
      return CUDA_R_16F;
    case ElementType::kBFloat16:
      return CUDA_R_16BF;
    case ElementType::kFloat:
      return CUDA_R_32F;
    case ElementType::kDouble:
      break;
  }
  throw std::logic_error("nets on a GPU do not support 64-bit products");
}

cublasLtEpilogue_t epilogue_of(const Matmul& matmul) {
  switch (matmul.epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kRelu:
      return CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kReluBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
  }
  throw std::logic_error("unknown epilogue");
}

Layout layout_of(ElementType type, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                 int count, std::int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, data_type(type), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), ld),
        "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (count > 1) {
    const std::int32_t batches = count;
    check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                           sizeof(batches)),
          "cublasLtMatrixLayoutSetAttribute");
    check(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &stride, sizeof(stride)),
          "cublasLtMatrixLayoutSetAttribute");
  }
  return layout;
}

/// cuBLASLt's descriptors of a product.
class Described {
 public:
  Described(const Matmul& matmul, const void* bias)
      : a(layout_of(matmul.type, matmul.transpose_a ? matmul.k : matmul.m,
                    matmul.transpose_a ? matmul.m : matmul.k, matmul.lda, matmul.count,
                    matmul.stride_a)),
        b(layout_of(matmul.type, matmul.transpose_b ? matmul.n : matmul.k,
                    matmul.transpose_b ? matmul.k : matmul.n, matmul.ldb, matmul.count,
                    matmul.stride_b)),
        d(layout_of(matmul.result, matmul.m, matmul.n, matmul.ldd, matmul.count, matmul.stride_d)) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(
              &made, matmul.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    description = Description(made);
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(matmul.transpose_a));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(matmul.transpose_b));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(matmul));
    if (matmul.epilogue == Epilogue::kBias || matmul.epilogue == Epilogue::kReluBias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
  }

  Description description;
  Layout a;
  Layout b;
  Layout d;

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
};

/// Return cuBLASLt's suggestions, its fastest estimate first, with sums in 32 bits and in a fixed
/// order.
std::vector<cublasLtMatmulAlgo_t> suggestions(cublasLtContext* handle, const Matmul& matmul,
                                              int count) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  const std::size_t workspace = BlasLt::kWorkspaceBytes;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, kAlignment);
  }
  // The heuristic only needs the alignment of the bias.
  const auto* const pointer = reinterpret_cast<const void*>(std::uintptr_t{kAlignment});
  const Described described(matmul, pointer);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, described.description.get(), described.a.get(), described.b.get(), described.d.get(),
      described.d.get(), made, count, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
    check(status, "cublasLtMatmulAlgoGetHeuristic");
  }
  results.resize(static_cast<std::size_t>(found));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const auto& result : results) {
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(result.algo);
    }
  }
  return algorithms;
}

void run_product(cublasLtContext* handle, const Described& described, const Operands& operands,
                 const cublasLtMatmulAlgo_t& algorithm, void* workspace, cudaStream_t stream) {
  const float one = 1;
  const float zero = 0;
  check(cublasLtMatmul(handle, described.description.get(), &one, operands.a, described.a.get(),
                       operands.b, described.b.get(), &zero, operands.d, described.d.get(),
                       operands.d, described.d.get(), &algorithm, workspace,
                       BlasLt::kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

/// The algorithms found for a product on a device.
struct Choice {
  std::optional<cublasLtMatmulAlgo_t> first;  // none: cuBLASLt has no algorithm for it
  std::optional<cublasLtMatmulAlgo_t> chosen;
};

std::mutex mutex;

/// Return the choice for the current device; read and write it under the mutex.
Choice& choice_of(cublasLtContext* handle, const Matmul& matmul) {
  static auto* const choices = new std::map<std::pair<int, Matmul>, Choice>;  // never destroyed
  const std::pair key(current_device(), matmul);
  auto found = choices->find(key);
  if (found == choices->end()) {
    const auto suggested = suggestions(handle, matmul, 1);
    found = choices->emplace(key, Choice{}).first;
    if (!suggested.empty()) {
      found->second.first = suggested.front();
    }
  }
  return found->second;
}

}  // namespace

bool BlasLt::can_multiply(cublasLtContext* handle, const Matmul& matmul) {
  const std::lock_guard lock(mutex);
  return choice_of(handle, matmul).first.has_value();
}

void BlasLt::multiply(const Matmul& matmul, const Operands& operands) const {
  const Described described(matmul, operands.bias);
  std::unique_lock lock(mutex);
  Choice& choice = choice_of(handle_, matmul);
  if (!choice.first) {
    throw std::runtime_error("cuBLASLt has no algorithm for a product of " +
                             std::to_string(matmul.m) + " × " + std::to_string(matmul.k) + " by " +
                             std::to_string(matmul.k) + " × " + std::to_string(matmul.n));
  }
  const bool is_first = choosing_ == Choosing::kFirst || !choice.chosen;
  const cublasLtMatmulAlgo_t algorithm = is_first ? *choice.first : *choice.chosen;
  lock.unlock();
  if (seen_ != nullptr) {
    seen_->push_back({matmul, operands});
  }
  run_product(handle_, described, operands, algorithm, workspace_, stream_);
}

Suggestions::Suggestions(cublasLtContext* handle, const Product& product, void* workspace)
    : handle_(handle),
      product_(product),
      workspace_(workspace),
      algorithms_(suggestions(handle, product.matmul, kSuggestions)) {}

bool Suggestions::is_chosen() const {
  const std::lock_guard lock(mutex);
  return choice_of(handle_, product_.matmul).chosen.has_value();
}

void Suggestions::run(std::size_t algorithm, cudaStream_t stream) const {
  const Described described(product_.matmul, product_.operands.bias);
  run_product(handle_, described, product_.operands, algorithms_.at(algorithm), workspace_, stream);
}

void Suggestions::choose(std::size_t algorithm) const {
  const std::lock_guard lock(mutex);
  choice_of(handle_, product_.matmul).chosen = algorithms_.at(algorithm);
}

}  // namespace convtime::mlp
