#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "conv/engine.h"
#include "core/export.h"

namespace convtime::conv {

/// Combines numbers, values of enums and arrays into one hash.
class Hasher {
 public:
  template <typename... Values>
  explicit Hasher(const Values&... values) {
    (add(values), ...);
  }

  template <typename Value>
  void add(const Value& value) {
    if constexpr (requires { value.begin(); }) {
      for (const auto& each : value) {
        add(each);
      }
    } else {
      // Mixing function of boost::hash_combine, in 64 bits.
      hash_ ^=
          static_cast<std::size_t>(value) + 0x9e3779b97f4a7c15ULL + (hash_ << 12) + (hash_ >> 4);
    }
  }
  std::size_t hash() const { return hash_; }

 private:
  std::size_t hash_ = 0;
};

inline constexpr std::size_t kMaxRank = 5;  // batch, channels and up to three spatial dimensions
inline constexpr std::size_t kMaxSpatial = kMaxRank - 2;

/// A tensor as described to cuDNN; unused dimensions are zero.
struct TensorShape {
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t alignment = 0;  ///< bytes

  bool operator==(const TensorShape&) const = default;
};

/// The epilogue of a convolution in the same graph: y = activation(conv(x, w) + alpha * z + b).
/// Empty by default.
struct Epilogue {
  std::optional<TensorShape> z;  ///< same sizes as y
  float alpha = 1;
  std::optional<TensorShape> b;  ///< same rank as y, with one value per channel
  Activation activation = Activation::kIdentity;
  float negative_slope = 0;  ///< kLeakyRelu

  bool operator==(const Epilogue&) const = default;
};

/// Everything that determines a built plan and the engines that can run it.
struct Problem {
  Pass pass = Pass::kFprop;
  std::int32_t device = 0;
  std::int32_t rank = 0;
  cudnnDataType_t data_type = CUDNN_DATA_FLOAT;
  TensorShape x;
  TensorShape w;
  TensorShape y;
  std::array<std::int64_t, kMaxSpatial> padding{};
  std::array<std::int64_t, kMaxSpatial> stride{};
  std::array<std::int64_t, kMaxSpatial> dilation{};
  Epilogue epilogue;  ///< kFprop
  bool deterministic = false;
  bool allow_tf32 = true;

  bool operator==(const Problem&) const = default;
};

struct ProblemHash {
  std::size_t operator()(const Problem& problem) const;
};

/// Describe a tensor to cuDNN as PyTorch does. Dimensions of size one, whose strides are
/// meaningless, get the strides of a dense tensor in its layout. The alignment is the largest power
/// of two, up to 32, that divides the address.
TensorShape describe(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                     const void* data, bool channels_last);

enum class PolicyKind : std::int32_t {
  kHeuristic,  ///< as PyTorch with cudnn.benchmark off: the first plan that runs
  kBenchmark,  ///< as PyTorch with cudnn.benchmark on: the fastest plan in one timed run each
  kEngine,     ///< only the named engine
};
constexpr auto names_of(PolicyKind /*all*/) {
  return std::array{"heuristic", "benchmark", "engine"};
}

/// How a problem's plan is selected. Fields that a kind does not use keep their defaults, so that
/// policies that select the same plan compare equal.
struct Policy {
  PolicyKind kind = PolicyKind::kHeuristic;
  bool heuristic_mode_b = false;     ///< kHeuristic: use cuDNN's mode B instead of INSTANT
  std::int32_t benchmark_limit = 0;  ///< kBenchmark: maximum number of plans to time; 0 for all
  Engine engine;                     ///< kEngine

  bool operator==(const Policy&) const = default;
};

/// "heuristic", "benchmark" or the engine's tag.
CONVTIME_API std::string to_string(const Policy& policy);

/// The key of a cached plan.
struct PlanKey {
  Problem problem;
  Policy policy;

  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const;
};

}  // namespace convtime::conv
