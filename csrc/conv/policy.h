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
  kBenchmark,  ///< as PyTorch with cudnn.benchmark on: the plan that one timed run found fastest
  kEngine,     ///< the named engine and no other
};

/// How a problem's plan is selected. What a kind does not use stays at its default, so that
/// policies are equal where they select alike.
struct Policy {
  PolicyKind kind = PolicyKind::kHeuristic;
  bool heuristic_mode_b = false;     ///< kHeuristic: cuDNN's mode B in place of INSTANT
  std::int32_t benchmark_limit = 0;  ///< kBenchmark: how many plans are timed; 0 is all
  Engine engine;                     ///< kEngine

  bool operator==(const Policy&) const = default;
};

/// "heuristic", "benchmark" or the engine's tag.
CONVTIME_API std::string to_string(const Policy& policy);

/// What a plan is kept under.
struct PlanKey {
  Problem problem;
  Policy policy;

  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const;
};

}  // namespace convtime::conv
