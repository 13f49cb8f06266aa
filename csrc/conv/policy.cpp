#include "conv/policy.h"

#include <stdexcept>

#include "conv/problem.h"

namespace convtime::conv {

std::string to_string(const Policy& policy) {
  switch (policy.kind) {
    case PolicyKind::kHeuristic:
      return "heuristic";
    case PolicyKind::kBenchmark:
      return "benchmark";
    case PolicyKind::kEngine:
      return to_tag(policy.engine);
  }
  throw std::logic_error("unknown policy");
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(ProblemHash{}(key.problem)));
  hasher.add(static_cast<std::int64_t>(key.policy.kind));
  hasher.add(key.policy.heuristic_mode_b);
  hasher.add(key.policy.benchmark_limit);
  hasher.add(key.policy.engine.index);
  for (const Knob& knob : key.policy.engine.knobs) {
    hasher.add(knob.type);
    hasher.add(knob.value);
  }
  return hasher.hash();
}

}  // namespace convtime::conv
