#include "conv/selection.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "conv/frontend.h"
#include "conv/tensor_ids.h"

namespace convtime::conv {
namespace {

using EngineConfigs = std::vector<cudnn_frontend::ManagedOpaqueDescriptor>;

cudnn_frontend::Tensor make_tensor(const Problem& problem, const TensorShape& shape,
                                   std::int64_t id) {
  return cudnn_frontend::TensorBuilder()
      .setDim(problem.rank, shape.sizes.data())
      .setStrides(problem.rank, shape.strides.data())
      .setId(id)
      .setAlignment(shape.alignment)
      .setDataType(problem.data_type)
      .build();
}

cudnnDataType_t compute_type(cudnnDataType_t data_type) {
  const bool half = data_type == CUDNN_DATA_HALF || data_type == CUDNN_DATA_BFLOAT16;
  return half ? CUDNN_DATA_FLOAT : data_type;
}

cudnnBackendDescriptorType_t operation_type(Pass pass) {
  switch (pass) {
    case Pass::kFprop:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    case Pass::kDgrad:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    case Pass::kWgrad:
      return CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  }
  throw std::logic_error("unknown convolution pass");
}

cudnn_frontend::OperationGraph make_graph(cudnnHandle_t handle, const Problem& problem) {
  const std::int64_t spatial = problem.rank - 2;
  // The number of groups is not said: cuDNN infers it from the channels of x and w.
  auto convolution = cudnn_frontend::ConvDescBuilder()
                         .setDataType(compute_type(problem.data_type))
                         .setMathMode(CUDNN_CROSS_CORRELATION)
                         .setNDims(spatial)
                         .setStrides(spatial, problem.stride.data())
                         .setPrePadding(spatial, problem.padding.data())
                         .setPostPadding(spatial, problem.padding.data())
                         .setDilation(spatial, problem.dilation.data())
                         .build();
  auto operation = cudnn_frontend::OperationBuilder(operation_type(problem.pass))
                       .setxDesc(make_tensor(problem, problem.x, kIdX))
                       .setyDesc(make_tensor(problem, problem.y, kIdY))
                       .setwDesc(make_tensor(problem, problem.w, kIdW))
                       .setcDesc(convolution)
                       .build();
  const cudnn_frontend::Operation* operations[] = {&operation};
  return cudnn_frontend::OperationGraphBuilder()
      .setHandle(handle)
      .setOperationGraph(1, operations)
      .build();
}

/// Whether PyTorch leaves an engine out for its numerical properties.
bool is_filtered(cudnnBackendDescriptor_t config, const Problem& problem) {
  using cudnn_frontend::hasNumericalNote;
  if (problem.deterministic && hasNumericalNote<CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC>(config)) {
    return true;
  }
  if (hasNumericalNote<CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS>(config)) {
    return true;
  }
  return problem.data_type == CUDNN_DATA_FLOAT && !problem.allow_tf32 &&
         hasNumericalNote<CUDNN_NUMERICAL_NOTE_TENSOR_CORE>(config);
}

EngineConfigs list_engine_configs(cudnn_frontend::OperationGraph& graph, const Problem& problem,
                                  cudnnBackendHeurMode_t mode) {
  auto heuristics = cudnn_frontend::EngineHeuristicsBuilder_v8()
                        .setOperationGraph(graph)
                        .setHeurMode(mode)
                        .build();
  EngineConfigs kept;
  for (auto& config : heuristics.getEngineConfig(heuristics.getEngineConfigCount())) {
    if (!is_filtered(config->get_backend_descriptor(), problem)) {
      kept.push_back(config);
    }
  }
  return kept;
}

/// Whether the user's errata file (CUDNN_ERRATA_JSON_FILE, read once) forbids the plan.
bool has_erratum(cudnnHandle_t handle, const std::string& tag) {
  static nlohmann::json errata;
  static const bool loaded = cudnn_frontend::load_from_config(errata, "");
  return loaded && cudnn_frontend::check_errata(errata, tag, handle, [] { return true; });
}

}  // namespace

Plan select_as_pytorch(cudnnHandle_t handle, const Problem& problem,
                       const std::function<bool(const Plan&)>& try_run) {
  auto graph = make_graph(handle, problem);
  const auto instant = problem.heuristic_mode_b ? CUDNN_HEUR_MODE_B : CUDNN_HEUR_MODE_INSTANT;
  std::string refusals;
  for (const auto mode : {instant, CUDNN_HEUR_MODE_FALLBACK}) {
    for (auto& config : list_engine_configs(graph, problem, mode)) {
      try {
        const Plan plan(cudnn_frontend::ExecutionPlanBuilder()
                            .setHandle(handle)
                            .setEngineConfig(config, graph.getTag())
                            .build());
        if (has_erratum(handle, plan.tag())) {
          refusals += "\n  " + plan.tag() + ": listed in CUDNN_ERRATA_JSON_FILE";
        } else if (try_run(plan)) {
          return plan;
        } else {
          refusals += "\n  " + plan.tag() + ": no memory for its workspace of " +
                      std::to_string(plan.workspace_bytes()) + " bytes";
        }
      } catch (const std::runtime_error& error) {  // cudnnException among them
        refusals += std::string("\n  ") + error.what();
      }
    }
  }
  throw std::runtime_error("cuDNN has no engine that runs this convolution" +
                           (refusals.empty() ? std::string("; it listed none") : ":" + refusals));
}

}  // namespace convtime::conv
