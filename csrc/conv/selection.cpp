#include "conv/selection.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "conv/backend.h"
#include "conv/engine_config.h"
#include "conv/errata.h"
#include "conv/graph.h"
#include "core/cuda.h"

namespace convtime::conv {
namespace {

using Config = cudnn_frontend::ManagedOpaqueDescriptor;
using Graph = cudnn_frontend::OperationGraph;

/// List at most `count` of cuDNN's configurations, in its order, without those that PyTorch
/// excludes.
std::vector<Config> list_configs(Graph& graph, const Problem& problem, cudnnBackendHeurMode_t mode,
                                 std::int64_t count = std::numeric_limits<std::int64_t>::max()) {
  std::vector<Config> configs = configs_of(graph, mode, count);
  std::erase_if(configs, [&](const Config& config) {
    return !why_excluded(config->get_backend_descriptor(), problem).empty();
  });
  return configs;
}

/// The engines of cuDNN's fallback list run almost everything, but slowly. PyTorch uses them for
/// its own graphs; for other activations, a separate convolution with its own engine is faster.
bool falls_back(Activation activation) {
  return activation == Activation::kIdentity || activation == Activation::kRelu;
}

std::shared_ptr<CudnnPlan> build_plan(cudnnHandle_t handle, const Graph& graph,
                                      const Config& config) {
  return std::make_shared<CudnnPlan>(cudnn_frontend::ExecutionPlanBuilder()
                                         .setHandle(handle)
                                         .setEngineConfig(config, graph.getTag())
                                         .build());
}

std::string forbidden(const CudnnPlan& plan, const std::string& why) {
  return "cuDNN's plan " + plan.tag() + ", which must not run this convolution: " + why;
}

/// The state of a running selection, including the plans refused so far.
class Selector {
 public:
  Selector(cudnnHandle_t handle, const PlanKey& key, const Operands& operands, Workspace& workspace)
      : handle_(handle),
        key_(key),
        operands_(operands),
        workspace_(workspace),
        graph_(make_graph(handle, key.problem)) {}

  Selection by_heuristic() {
    const auto mode = key_.policy.heuristic_mode_b ? CUDNN_HEUR_MODE_B : CUDNN_HEUR_MODE_INSTANT;
    // Only the first, as in PyTorch: it nearly always runs, and listing the others takes time.
    std::vector<Config> configs = list_configs(graph_, key_.problem, mode, /*count=*/1);
    if (auto selected = first_that_runs(configs, Source::kInstant)) {
      return std::move(*selected);
    }
    const std::size_t tried = configs.size();
    configs = list_configs(graph_, key_.problem, mode);
    configs.erase(configs.begin(),
                  configs.begin() + static_cast<std::ptrdiff_t>(std::min(tried, configs.size())));
    if (auto selected = first_that_runs(configs, Source::kInstant)) {
      return std::move(*selected);
    }
    if (falls_back(key_.problem.epilogue.activation)) {
      configs = list_configs(graph_, key_.problem, CUDNN_HEUR_MODE_FALLBACK);
      if (auto selected = first_that_runs(configs, Source::kFallback)) {
        return std::move(*selected);
      }
    }
    throw no_plan();
  }

  Selection by_benchmark() {
    std::vector<Candidate> timed = time_candidates();
    workspace_.trim();
    // Stable sort: of equally fast plans, PyTorch keeps the one that cuDNN lists first.
    std::ranges::stable_sort(
        timed, [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
    for (Candidate& candidate : timed) {
      if (runs(*candidate.plan)) {
        return select(std::move(candidate.plan), std::move(candidate.engine), Source::kBenchmark);
      }
    }
    throw no_plan();
  }

  Selection by_engine() {
    const Config config = make_engine_config(graph_, key_.policy.engine);
    std::shared_ptr<CudnnPlan> plan = build_plan(handle_, graph_, config);
    const std::string why = erratum(handle_, *plan, key_.problem.rank);
    if (!why.empty()) {
      throw std::invalid_argument("policy names " + forbidden(*plan, why) +
                                  "; name another engine, or leave policy out");
    }
    run_plan(*plan, handle_, operands_, workspace_);
    return select(std::move(plan), engine_of(config->get_backend_descriptor()), Source::kExplicit);
  }

 private:
  struct Candidate {
    std::shared_ptr<CudnnPlan> plan;
    Engine engine;
    double seconds = std::numeric_limits<double>::infinity();
  };

  void refuse(const std::string& tag, const std::string& why) {
    refused_.push_back(tag + ": " + why);
  }

  /// Return std::nullopt if cuDNN or an erratum refuses the plan.
  std::optional<Candidate> build(const Config& config) {
    std::string tag = "an unnamed cuDNN engine";
    try {
      Engine engine = engine_of(config->get_backend_descriptor());
      tag = graph_.getTag() + to_tag(engine);
      std::shared_ptr<CudnnPlan> plan = build_plan(handle_, graph_, config);
      const std::string why = erratum(handle_, *plan, key_.problem.rank);
      if (why.empty()) {
        return Candidate{std::move(plan), std::move(engine)};
      }
      refuse(tag, why);
    } catch (const CudnnError& error) {
      refuse(tag, error.what());
    } catch (const cudnn_frontend::cudnnException& error) {
      refuse(tag, error.what());
    }
    return std::nullopt;
  }

  bool runs(Plan& plan) {
    try {
      run_plan(plan, handle_, operands_, workspace_);
      return true;
    } catch (const OutOfMemory& error) {
      lacked_memory_ = true;
      refuse(plan.tag(), error.what());
    } catch (const CudnnError& error) {
      refuse(plan.tag(), error.what());
    }
    return false;
  }

  std::optional<Selection> first_that_runs(const std::vector<Config>& configs, Source source) {
    for (const Config& config : configs) {
      std::optional<Candidate> candidate = build(config);
      if (candidate.has_value() && runs(*candidate->plan)) {
        return select(std::move(candidate->plan), std::move(candidate->engine), source);
      }
    }
    return std::nullopt;
  }

  /// Time as many plans as the policy requests, or all that run. PyTorch times the same plans but
  /// builds all before it times any. With an epilogue this takes long, because cuDNN compiles a
  /// kernel per plan.
  std::vector<Candidate> time_candidates() {
    constexpr std::size_t kMostPlans = 1000;
    const std::size_t limit = key_.policy.benchmark_limit > 0
                                  ? static_cast<std::size_t>(key_.policy.benchmark_limit)
                                  : kMostPlans;
    std::vector<Config> configs = list_configs(graph_, key_.problem, CUDNN_HEUR_MODE_INSTANT);
    for (Config& config : list_configs(graph_, key_.problem, CUDNN_HEUR_MODE_FALLBACK)) {
      configs.push_back(std::move(config));
    }
    std::vector<Candidate> timed;
    auto next = configs.begin();
    while (timed.size() < limit && next != configs.end()) {
      std::vector<Candidate> candidates;
      for (; timed.size() + candidates.size() < limit && next != configs.end(); ++next) {
        if (std::optional<Candidate> candidate = build(*next)) {
          candidates.push_back(std::move(*candidate));
        }
      }
      time(affordable(std::move(candidates)), timed);
    }
    return timed;
  }

  /// Return the candidates whose workspace fits in memory; reserves the largest workspace.
  std::vector<Candidate> affordable(std::vector<Candidate> candidates) {
    std::int64_t bytes = keep_below(candidates, workspace_.largest_block());
    while (bytes > 0 && workspace_.reserve(bytes) == nullptr) {
      bytes /= 2;
      keep_below(candidates, bytes);
    }
    return candidates;
  }

  /// Drop candidates that need more than `limit` bytes; return the largest workspace of the rest.
  std::int64_t keep_below(std::vector<Candidate>& candidates, std::int64_t limit) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    CONVTIME_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const auto device_bytes = static_cast<std::int64_t>(total_bytes);
    std::int64_t most = 0;
    std::erase_if(candidates, [&](const Candidate& candidate) {
      const std::int64_t bytes = candidate.plan->workspace_bytes();
      if (bytes > limit) {
        // A workspace larger than the device's memory does not fit at any time, in any thread.
        lacked_memory_ = lacked_memory_ || bytes <= device_bytes;
        refuse(candidate.plan->tag(), "its workspace needs " + std::to_string(bytes) +
                                          " bytes, but only " + std::to_string(limit) +
                                          " are available");
        return true;
      }
      most = std::max(most, bytes);
      return false;
    });
    return most;
  }

  /// Time one run of each candidate after a warm-up run, and append those that run.
  void time(std::vector<Candidate> candidates, std::vector<Candidate>& timed) {
    const EventPair events;
    cudaStream_t stream = stream_of(handle_);
    CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
    for (Candidate& candidate : candidates) {
      if (!runs(*candidate.plan)) {
        continue;
      }
      CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
      CONVTIME_CUDA_CHECK(cudaEventRecord(events.start.get(), stream));
      if (!runs(*candidate.plan)) {
        continue;
      }
      CONVTIME_CUDA_CHECK(cudaEventRecord(events.stop.get(), stream));
      CONVTIME_CUDA_CHECK(cudaEventSynchronize(events.stop.get()));
      candidate.seconds = events.seconds();
      timed_.push_back(candidate.plan->tag());
      timed.push_back(std::move(candidate));
    }
  }

  Selection select(std::shared_ptr<CudnnPlan> plan, Engine engine, Source source) {
    PlanChoice choice;
    choice.tag = plan->tag();
    choice.engine = std::move(engine);
    choice.source = source;
    choice.workspace_bytes = plan->workspace_bytes();
    choice.timed = std::move(timed_);
    for (const auto note : plan->frontend_plan().getAllNumericNotes()) {
      choice.numerical_notes.push_back(note_name(note));
    }
    for (const auto note : plan->frontend_plan().getAllBehaviorNotes()) {
      choice.behavior_notes.push_back(note_name(note));
    }
    choice.refused = std::move(refused_);
    return {std::move(plan), std::move(choice), lacked_memory_};
  }

  NoEngine no_plan() const {
    std::string text = "cuDNN has no engine that runs this convolution";
    text += refused_.empty() ? "; it listed none" : ":";
    for (const std::string& refusal : refused_) {
      text += "\n  " + refusal;
    }
    return NoEngine(text, lacked_memory_);
  }

  cudnnHandle_t handle_;
  const PlanKey& key_;
  const Operands& operands_;
  Workspace& workspace_;
  std::vector<std::string> timed_;
  Graph graph_;
  std::vector<std::string> refused_;
  bool lacked_memory_ = false;
};

}  // namespace

void run_plan(Plan& plan, cudnnHandle_t handle, const Operands& operands, Workspace& workspace) {
  void* memory = nullptr;
  if (plan.workspace_bytes() > 0) {
    memory = workspace.reserve(plan.workspace_bytes());
    if (memory == nullptr) {
      throw OutOfMemory("cannot allocate the plan's workspace of " +
                        std::to_string(plan.workspace_bytes()) + " bytes");
    }
  }
  try {
    plan.run(handle, operands, memory);
  } catch (const CudnnError&) {
    check_stream(stream_of(handle));
    throw;
  }
}

Selection select_plan(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                      Workspace& workspace) {
  try {
    Selector selector(handle, key, operands, workspace);
    switch (key.policy.kind) {
      case PolicyKind::kHeuristic:
        return selector.by_heuristic();
      case PolicyKind::kBenchmark:
        return selector.by_benchmark();
      case PolicyKind::kEngine:
        return selector.by_engine();
    }
  } catch (const cudnn_frontend::cudnnException& error) {
    check_stream(stream_of(handle));
    throw NoEngine(std::string("cuDNN refuses this convolution: ") + error.what(),
                   /*lacked_memory=*/false);
  } catch (const std::exception&) {
    check_stream(stream_of(handle));  // if CUDA has failed, the plan is not at fault
    throw;
  }
  throw std::logic_error("unknown policy");
}

std::shared_ptr<Plan> build_engine(cudnnHandle_t handle, const Problem& problem,
                                   const Engine& engine) {
  const Graph graph = make_graph(handle, problem);
  std::shared_ptr<CudnnPlan> plan = build_plan(handle, graph, make_engine_config(graph, engine));
  const std::string why = erratum(handle, *plan, problem.rank);
  if (!why.empty()) {
    throw std::invalid_argument("this is " + forbidden(*plan, why));
  }
  return plan;
}

std::shared_ptr<Plan> rebuild_plan(cudnnHandle_t handle, const Problem& problem,
                                   const PlanChoice& choice) {
  // If cuDNN refuses, the caller selects again, and that selection reports the error.
  try {
    const Graph graph = make_graph(handle, problem);
    std::shared_ptr<Plan> plan =
        build_plan(handle, graph, make_engine_config(graph, choice.engine));
    // Compared because knobs that cuDNN only reports would be lost.
    return plan->tag() == choice.tag ? plan : nullptr;
  } catch (const std::invalid_argument&) {
    return nullptr;
  } catch (const CudnnError&) {
    return nullptr;
  } catch (const cudnn_frontend::cudnnException&) {
    return nullptr;
  }
}

}  // namespace convtime::conv
