#pragma once

#include <compare>
#include <cstdint>

#include "kernels/element_type.h"
#include "kernels/mlp/step.h"
#include "program/nvrtc.h"

// The kernels of nets on chip, by what they are compiled for.

namespace convtime::mlp {

/// The first compute capability (90 for 9.0) with clusters and kernels that start early.
constexpr int kClusterCapability = 90;

/// The only compute capability with the instructions of kSpilled.
constexpr int kSpilledCapability = 90;

enum class StepKernel : std::int8_t {
  kOnChip,
  kSpilled,  // for nets that do not fit on chip
};

/// Return the largest StepKind::kTargetLanes of a kernel; the other one is 1.
constexpr int most_target_lanes(StepKernel kernel) {
  return kernel == StepKernel::kSpilled ? 8 : 2;
}

constexpr Objective objective_of(MlpLoss loss) {
  return loss == MlpLoss::kMse ? Objective::kMse : Objective::kCrossEntropy;
}

/// Return whether an objective's targets are values of the net's type, not classes.
constexpr bool has_value_targets(Objective objective) {
  return objective == Objective::kMse || objective == Objective::kGradient;
}

/// A kernel that takes a step, with its StepKind.
struct StepProgram {
  StepKernel kernel;
  ElementType type;
  int width;
  MlpActivation activation;
  Objective objective;
  bool vector_inputs;
  int target_lanes;
  Gathering gathering = Gathering::kDevice;
  MlpOptimizer optimizer{};
  bool has_master = false;

  friend auto operator<=>(const StepProgram&, const StepProgram&) = default;
};
ProgramSource source_of(const StepProgram& program);

/// A kernel that sums the slots after a step, and updates the weights if it learns.
struct SlotsProgram {
  ElementType type;
  int width;
  bool learns;
  MlpOptimizer optimizer{};
  bool has_master = false;

  friend auto operator<=>(const SlotsProgram&, const SlotsProgram&) = default;
};
ProgramSource source_of(const SlotsProgram& program);

/// The kernel that finds the size of clusters.
ProgramSource fill_source();

}  // namespace convtime::mlp
