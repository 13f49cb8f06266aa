#include "conv/engine_config.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "conv/backend.h"
#include "conv/errata.h"
#include "conv/graph.h"

namespace convtime::conv {
namespace {

using Config = cudnn_frontend::ManagedOpaqueDescriptor;

// The list by which PyTorch selects comes first: its order is the one that is kept.
constexpr std::array<std::pair<cudnnBackendHeurMode_t, const char*>, 4> kLists = {
    {{CUDNN_HEUR_MODE_INSTANT, "instant"},
     {CUDNN_HEUR_MODE_A, "a"},
     {CUDNN_HEUR_MODE_B, "b"},
     {CUDNN_HEUR_MODE_FALLBACK, "fallback"}}};

}  // namespace

std::vector<Config> configs_of(cudnn_frontend::OperationGraph& graph, cudnnBackendHeurMode_t mode,
                               std::int64_t count) {
  auto heuristics = cudnn_frontend::EngineHeuristicsBuilder_v8()
                        .setOperationGraph(graph)
                        .setHeurMode(mode)
                        .build();
  return heuristics.getEngineConfig(std::min(count, heuristics.getEngineConfigCount()));
}

std::string why_excluded(cudnnBackendDescriptor_t config, const Problem& problem) {
  using cudnn_frontend::hasNumericalNote;
  if (problem.deterministic && hasNumericalNote<CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC>(config)) {
    return "it is not deterministic";
  }
  if (hasNumericalNote<CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS>(config)) {
    return "it converts its inputs to a smaller type";
  }
  if (problem.data_type == CUDNN_DATA_FLOAT && !problem.allow_tf32 &&
      hasNumericalNote<CUDNN_NUMERICAL_NOTE_TENSOR_CORE>(config)) {
    return "it computes in TF32, which is switched off";
  }
  return "";
}

std::string why_unusable(cudnnHandle_t handle, const Problem& problem, const Engine& engine) {
  try {
    const cudnn_frontend::OperationGraph graph = make_graph(handle, problem);
    const Config config = make_engine_config(graph, engine);
    const cudnnBackendDescriptor_t raw = config->get_backend_descriptor();
    const std::string why = why_excluded(raw, problem);
    return why.empty() ? erratum(handle, graph.getTag() + to_tag(engine_of(raw)), problem.rank)
                       : why;
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const CudnnError& error) {
    return error.what();
  } catch (const cudnn_frontend::cudnnException& error) {
    return error.what();
  }
}

std::vector<ListedEngine> list_engines(cudnnHandle_t handle, const Problem& problem) {
  cudnn_frontend::OperationGraph graph = make_graph(handle, problem);
  std::vector<ListedEngine> listed;
  const auto add = [&](const Config& config, const char* list, std::int64_t position) {
    const cudnnBackendDescriptor_t raw = config->get_backend_descriptor();
    Engine engine = engine_of(raw);
    std::string tag = graph.getTag() + to_tag(engine);
    auto found = std::find_if(listed.begin(), listed.end(),
                              [&](const ListedEngine& other) { return other.tag == tag; });
    if (found == listed.end()) {
      found = listed.insert(found, {.tag = std::move(tag),
                                    .engine = std::move(engine),
                                    .places = {},
                                    .facts = facts_of(raw),
                                    .excluded = why_excluded(raw, problem),
                                    .unsupported = {}});
    }
    found->places.push_back({list, position});
  };
  for (const auto& [mode, name] : kLists) {
    std::vector<Config> configs;
    try {
      configs = configs_of(graph, mode);
    } catch (const cudnn_frontend::cudnnException&) {
      continue;  // cuDNN has no such list for this graph
    }
    for (std::size_t i = 0; i < configs.size(); ++i) {
      add(configs[i], name, static_cast<std::int64_t>(i));
    }
  }
  for (std::int64_t index = 0; index < count_engines(graph); ++index) {
    const Engine engine{.index = index, .knobs = {}};
    try {
      add(make_default_config(graph, index), "index", index);
    } catch (const CudnnError& error) {
      listed.push_back({.tag = graph.getTag() + to_tag(engine),
                        .engine = engine,
                        .places = {{"index", index}},
                        .facts = {},
                        .excluded = {},
                        .unsupported = error.what()});
    }
  }
  return listed;
}

}  // namespace convtime::conv
