#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "conv/engine.h"
#include "conv/problem.h"
#include "core/export.h"

namespace convtime::conv {

enum class PolicyKind : std::int32_t {
  kHeuristic,  ///< as PyTorch with cudnn.benchmark off: the first plan that runs
  kBenchmark,  ///< as PyTorch with cudnn.benchmark on: the fastest plan in one timed run each
  kEngine,     ///< only the named engine
};

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
