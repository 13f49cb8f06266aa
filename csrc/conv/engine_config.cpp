#include "conv/engine_config.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "conv/backend.h"
#include "conv/errata.h"
#include "conv/graph.h"

namespace convtime::conv {
namespace {

/// Holds one descriptor per possible knob, for cuDNN to fill in.
class KnobDescriptors {
 public:
  explicit KnobDescriptors(cudnnBackendDescriptorType_t type) {
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
      owned_.push_back(make_descriptor(type));
      raw_.push_back(owned_.back().get());
    }
  }

  /// Fetch the attribute and return the descriptors that were filled in.
  std::span<const cudnnBackendDescriptor_t> fetch(cudnnBackendDescriptor_t from,
                                                  cudnnBackendAttributeName_t name) {
    const std::int64_t count = get_attribute(from, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw_.data(),
                                             CUDNN_KNOB_TYPE_COUNTS);
    // A cuDNN newer than its header may have more knobs.
    return std::span(raw_).first(std::min(raw_.size(), static_cast<std::size_t>(count)));
  }

 private:
  std::vector<Descriptor> owned_;
  std::vector<cudnnBackendDescriptor_t> raw_;
};

std::string describe(const KnobRange& range) {
  return std::string("k") + std::to_string(range.type) + " (" + std::to_string(range.minimum) +
         " to " + std::to_string(range.maximum) +
         (range.step > 1 ? " in steps of " + std::to_string(range.step) : "") + ")";
}

std::vector<KnobRange> knob_ranges(cudnnBackendDescriptor_t engine) {
  KnobDescriptors descriptors(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
  std::vector<KnobRange> ranges;
  for (const cudnnBackendDescriptor_t info :
       descriptors.fetch(engine, CUDNN_ATTR_ENGINE_KNOB_INFO)) {
    ranges.push_back(
        {get_one<cudnnBackendKnobType_t>(info, CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE),
         get_one<std::int64_t>(info, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64),
         get_one<std::int64_t>(info, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64),
         get_one<std::int64_t>(info, CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64)});
  }
  return ranges;
}

/// Create the engine for the graph; throws if cuDNN does not support the graph with that engine.
Descriptor make_engine(cudnnBackendDescriptor_t graph, std::int64_t index) {
  Descriptor engine = make_descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  set_attribute(engine.get(), CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                &graph, 1);
  set_attribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &index, 1);
  check_cudnn(cudnnBackendFinalize(engine.get()), "cudnnBackendFinalize of an engine");
  return engine;
}

std::string supported_engines(const cudnn_frontend::OperationGraph& graph) {
  std::string engines;
  for (std::int64_t index = 0; index < count_engines(graph); ++index) {
    try {
      make_engine(graph.get_raw_desc(), index);
      engines += engines.empty() ? "eng" : ", eng";
      engines += std::to_string(index);
    } catch (const CudnnError&) {
      continue;  // this engine cannot run the graph
    }
  }
  return engines.empty() ? "none" : engines;
}

/// To which cuDNN's heuristics set a knob whose value the engine chooses; no range has it.
constexpr std::int64_t kChosenByEngine = -1;

void check_knobs(const Engine& engine, const std::vector<KnobRange>& ranges) {
  for (const Knob& knob : engine.knobs) {
    const auto range = std::ranges::find_if(
        ranges, [&](const KnobRange& candidate) { return candidate.type == knob.type; });
    if (range != ranges.end() && (range->allows(knob.value) || knob.value == kChosenByEngine)) {
      continue;
    }
    std::string known;
    for (const KnobRange& candidate : ranges) {
      known += known.empty() ? "" : ", ";
      known += describe(candidate);
    }
    throw std::invalid_argument(
        "engine " + std::to_string(engine.index) + " has no knob k" + std::to_string(knob.type) +
        "=" + std::to_string(knob.value) +
        " for this convolution; its knobs are: " + (known.empty() ? "none" : known));
  }
}

/// Return the engine of a configuration.
Descriptor engine_in(cudnnBackendDescriptor_t config) {
  Descriptor engine = make_descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  get_attribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw, 1);
  return engine;
}

template <typename Note>
std::vector<std::string> notes_of(cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type) {
  constexpr std::size_t kMost = 64;  // cuDNN 9 has fewer than 20 of each kind
  std::array<Note, kMost> notes{};
  const std::int64_t count = get_attribute(engine, name, type, notes.data(), kMost);
  std::vector<std::string> names;
  for (const Note note : std::span(notes).first(std::min(kMost, static_cast<std::size_t>(count)))) {
    names.push_back(note_name(note));
  }
  return names;
}

/// Return an attribute that cuDNN knows of some engines only.
template <typename T>
std::optional<std::int64_t> get_if_known(cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name,
                                         cudnnBackendAttributeType_t type) {
  T value{};
  std::int64_t found = 0;
  const cudnnStatus_t status =
      cudnnBackendGetAttribute(descriptor, name, type, /*requestedElementCount=*/1, &found, &value);
  return status == CUDNN_STATUS_SUCCESS ? std::optional<std::int64_t>(value) : std::nullopt;
}

std::string without_prefix(const std::string& text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

cudnn_frontend::ManagedOpaqueDescriptor make_config(const Descriptor& engine,
                                                    const std::vector<Knob>& knobs) {
  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> raw_choices;
  for (const Knob& knob : knobs) {
    choices.push_back(make_descriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    raw_choices.push_back(choices.back().get());
    const auto type = static_cast<cudnnBackendKnobType_t>(knob.type);
    set_attribute(raw_choices.back(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &type,
                  1);
    set_attribute(raw_choices.back(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                  &knob.value, 1);
    check_cudnn(cudnnBackendFinalize(raw_choices.back()), "cudnnBackendFinalize of a knob");
  }
  auto config = cudnn_frontend::make_shared_backend_pointer(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const cudnnBackendDescriptor_t raw_config = config->get_backend_descriptor();
  const cudnnBackendDescriptor_t raw_engine = engine.get();
  set_attribute(raw_config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw_engine,
                1);
  if (!raw_choices.empty()) {
    set_attribute(raw_config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  raw_choices.data(), static_cast<std::int64_t>(raw_choices.size()));
  }
  check_cudnn(cudnnBackendFinalize(raw_config), "cudnnBackendFinalize of an engine configuration");
  return config;
}

using Config = cudnn_frontend::ManagedOpaqueDescriptor;

// The list by which PyTorch selects comes first: its order is the one that is kept.
constexpr std::array<std::pair<cudnnBackendHeurMode_t, const char*>, 4> kLists = {
    {{CUDNN_HEUR_MODE_INSTANT, "instant"},
     {CUDNN_HEUR_MODE_A, "a"},
     {CUDNN_HEUR_MODE_B, "b"},
     {CUDNN_HEUR_MODE_FALLBACK, "fallback"}}};

}  // namespace

bool KnobRange::allows(std::int64_t value) const {
  return value >= minimum && value <= maximum && (step <= 1 || (value - minimum) % step == 0);
}

std::string note_name(cudnnBackendNumericalNote_t note) {
  return without_prefix(cudnn_frontend::to_string(note), "CUDNN_NUMERICAL_NOTE_");
}

std::string note_name(cudnnBackendBehaviorNote_t note) {
  return without_prefix(cudnn_frontend::to_string(note), "CUDNN_BEHAVIOR_NOTE_");
}

std::int64_t count_engines(const cudnn_frontend::OperationGraph& graph) {
  return get_one<std::int64_t>(graph.get_raw_desc(), CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                               CUDNN_TYPE_INT64);
}

EngineFacts facts_of(cudnnBackendDescriptor_t config) {
  const Descriptor engine = engine_in(config);
  const cudnnBackendDescriptor_t raw_engine = engine.get();
  return {
      .knobs = knob_ranges(raw_engine),
      .numerical_notes = notes_of<cudnnBackendNumericalNote_t>(
          raw_engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE),
      .behavior_notes = notes_of<cudnnBackendBehaviorNote_t>(
          raw_engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE),
      .workspace_bytes =
          get_if_known<std::int64_t>(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64),
      .shared_memory_bytes = get_if_known<std::int32_t>(
          config, CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32),
  };
}

Engine engine_of(cudnnBackendDescriptor_t config) {
  const Descriptor engine = engine_in(config);
  Engine result;
  result.index =
      get_one<std::int64_t>(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64);
  KnobDescriptors choices(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  for (const cudnnBackendDescriptor_t choice :
       choices.fetch(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
    result.knobs.push_back(
        {get_one<cudnnBackendKnobType_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                         CUDNN_TYPE_KNOB_TYPE),
         get_one<std::int64_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64)});
  }
  return result;
}

cudnn_frontend::ManagedOpaqueDescriptor make_default_config(
    const cudnn_frontend::OperationGraph& graph, std::int64_t index) {
  return make_config(make_engine(graph.get_raw_desc(), index), {});
}

cudnn_frontend::ManagedOpaqueDescriptor make_engine_config(
    const cudnn_frontend::OperationGraph& graph, const Engine& wanted) {
  Descriptor engine;
  try {
    engine = make_engine(graph.get_raw_desc(), wanted.index);
  } catch (const CudnnError& error) {
    throw std::invalid_argument(
        "cuDNN cannot run this convolution with engine " + std::to_string(wanted.index) +
        "; supported engines: " + supported_engines(graph) + " (" + error.what() + ")");
  }
  check_knobs(wanted, knob_ranges(engine.get()));
  return make_config(engine, wanted.knobs);
}

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
    auto found =
        std::ranges::find_if(listed, [&](const ListedEngine& other) { return other.tag == tag; });
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
