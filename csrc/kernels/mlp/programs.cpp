#include "kernels/mlp/programs.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/elements.h"
#include "kernels/mlp/mlp.h"

namespace convtime {
namespace mlp {
namespace {

std::string literal(bool value) { return value ? "true" : "false"; }

template <typename Enum>
std::string literal(const std::string& type, Enum value) {
  return "convtime::" + type + "(" + std::to_string(static_cast<int>(value)) + ")";
}

ProgramSource source_with(const std::string& header, const std::string& kernel,
                          const std::string& arguments) {
  return {"kernels/mlp/" + header, {"convtime::mlp::" + kernel + "<" + arguments + ">"}};
}

/// Add the programs that steps with an objective may need.
void add_sources(const MlpNet& net, Objective objective, MlpOptimizer optimizer, bool has_master,
                 int capability, std::vector<ProgramSource>& sources) {
  std::vector<std::pair<StepKernel, Gathering>> kernels{{StepKernel::kOnChip, Gathering::kDevice}};
  if (objective != Objective::kNone) {
    kernels.emplace_back(StepKernel::kOnChip, Gathering::kChip);
  }
  const bool trains = objective == Objective::kMse || objective == Objective::kCrossEntropy;
  if (trains && capability >= kClusterCapability) {
    kernels.emplace_back(StepKernel::kOnChip, Gathering::kCluster);
  }
  if (net.width == kSpilledSizes.width && capability == kSpilledCapability) {
    kernels.emplace_back(StepKernel::kSpilled, Gathering::kDevice);
  }
  for (const auto& [kernel, gathering] : kernels) {
    const bool learns = gathering == Gathering::kCluster;
    for (const bool vector_inputs : {false, true}) {
      for (const int lanes : {1, most_target_lanes(kernel)}) {
        if ((vector_inputs && net.inputs % 8 != 0) || net.outputs % lanes != 0 ||
            (lanes > 1 && !has_value_targets(objective))) {
          continue;
        }
        sources.push_back(
            source_of({kernel, net.type, net.width, net.activation, objective, vector_inputs, lanes,
                       gathering, learns ? optimizer : MlpOptimizer{}, learns && has_master}));
      }
    }
  }
}

}  // namespace

ProgramSource source_of(const StepProgram& program) {
  const std::string type = elements::name_of(program.type);
  const std::string kind =
      "convtime::mlp::StepKind<" + literal("MlpActivation", program.activation) + ", " +
      literal("mlp::Objective", program.objective) + ", " + literal(program.vector_inputs) + ", " +
      std::to_string(program.target_lanes) + ", " + literal("mlp::Gathering", program.gathering) +
      ", " + literal("MlpOptimizer", program.optimizer) + ", " + literal(program.has_master) + ">";
  if (program.kernel == StepKernel::kSpilled) {
    return source_with("spilled_by_warpgroups.cuh", "spilled_by_warpgroups_kernel",
                       type + ", " + kind);
  }
  return source_with("on_chip.cuh", "step_kernel",
                     type + ", " + std::to_string(program.width) + ", " + kind);
}

ProgramSource source_of(const SlotsProgram& program) {
  const std::string type = elements::name_of(program.type);
  const std::string arguments = type + ", " + std::to_string(program.width);
  if (!program.learns) {
    return source_with("slots.cuh", "sum_kernel", arguments);
  }
  return source_with("slots.cuh", "learn_kernel",
                     arguments + ", " + (program.has_master ? "float" : type) + ", " +
                         literal("MlpOptimizer", program.optimizer));
}

ProgramSource fill_source() { return {"kernels/mlp/clusters.cuh", {"convtime::mlp::fill_kernel"}}; }

}  // namespace mlp

std::vector<ProgramSource> mlp_training_programs(const MlpNet& net, MlpLoss loss,
                                                 MlpOptimizer optimizer, bool has_master,
                                                 int capability) {
  std::vector<ProgramSource> sources{
      mlp::source_of(mlp::SlotsProgram{net.type, net.width, true, optimizer, has_master})};
  if (capability >= mlp::kClusterCapability) {
    sources.push_back(mlp::fill_source());
  }
  mlp::add_sources(net, mlp::objective_of(loss), optimizer, has_master, capability, sources);
  return sources;
}

std::vector<ProgramSource> mlp_pass_programs(const MlpNet& net, int capability) {
  std::vector<ProgramSource> sources{mlp::source_of(mlp::SlotsProgram{net.type, net.width, false})};
  for (const mlp::Objective objective : {mlp::Objective::kNone, mlp::Objective::kGradient}) {
    mlp::add_sources(net, objective, {}, false, capability, sources);
  }
  return sources;
}

}  // namespace convtime
