#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv/plan.h"
#include "conv/problem.h"
#include "core/enum_names.h"

namespace convtime::conv {

/// The source of a plan's engine.
enum class Source : std::int32_t {
  kInstant,    ///< cuDNN's heuristics
  kFallback,   ///< cuDNN's list for when no heuristic engine runs
  kBenchmark,  ///< both, compared by one timed run each
  kExplicit,   ///< the caller
};
constexpr auto names_of(Source /*all*/) {
  return std::array{"instant", "fallback", "benchmark", "explicit"};
}

using convtime::to_string;

/// The plan that was selected for a problem, and its properties. It is not tied to a thread: each
/// thread builds its own plan from it.
struct PlanChoice {
  std::string tag;
  Engine engine;
  Source source = Source::kInstant;
  std::int64_t workspace_bytes = 0;
  std::vector<std::string> numerical_notes;  ///< cuDNN's names, e.g. "TENSOR_CORE"
  std::vector<std::string> behavior_notes;
  std::vector<std::string> refused;  ///< plans that came first but did not run, as "<tag>: <why>"
  std::vector<std::string> timed;    ///< kBenchmark: the plans that were timed, in order
};

/// The workspace of a plan could not be allocated.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// No engine that cuDNN lists for a problem can run it.
class NoEngine : public std::runtime_error {
 public:
  NoEngine(const std::string& text, bool lacked_memory)
      : std::runtime_error(text), lacked_memory_(lacked_memory) {}

  /// Return whether some engine might have run with more memory.
  bool lacked_memory() const { return lacked_memory_; }

 private:
  bool lacked_memory_;
};

/// Workspace memory for plans, in stream order on the handle's stream.
class Workspace {
 public:
  virtual ~Workspace() = default;

  /// Return that many bytes, valid until more is reserved; null if they cannot be allocated.
  virtual void* reserve(std::int64_t bytes) = 0;

  /// Return the largest workspace allowed for one plan while plans are timed.
  virtual std::int64_t largest_block() = 0;

  /// Free the reservation, and return memory used for timing to the device wherever PyTorch does.
  virtual void trim() = 0;
};

/// Run a plan with the workspace that it needs. Throws OutOfMemory if it cannot be allocated,
/// CudnnError if cuDNN refuses the plan, and CudaError if the cause is an earlier CUDA failure.
void run_plan(Plan& plan, cudnnHandle_t handle, const Operands& operands, Workspace& workspace);

struct Selection {
  std::shared_ptr<Plan> plan;
  PlanChoice choice;
  bool lacked_memory = false;  ///< for a plan that came before it
};

/// Select by the key's policy, and compute the convolution with the plan (timed plans compute it
/// several times). The heuristics and the timing follow ATen, native/cudnn/Conv_v8.cpp: if cuDNN
/// refuses a plan or its memory cannot be allocated, the next plan is tried; all other errors are
/// thrown. Throws std::invalid_argument for an engine or a knob that cuDNN does not support for the
/// problem or that the errata forbid, and NoEngine, naming the refused plans, if none runs.
Selection select_plan(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                      Workspace& workspace);

/// Build this thread's plan of an engine, without selecting: no choice is stored. Throws
/// std::invalid_argument if cuDNN does not support the engine or a knob for the problem or the
/// errata forbid the plan, and CudnnError or cudnn_frontend::cudnnException if cuDNN cannot build
/// it.
std::shared_ptr<Plan> build_engine(cudnnHandle_t handle, const Problem& problem,
                                   const Engine& engine);

/// Build this thread's plan from a choice that was made for the problem; null if cuDNN does not
/// build the same plan from engine and knobs.
std::shared_ptr<Plan> rebuild_plan(cudnnHandle_t handle, const Problem& problem,
                                   const PlanChoice& choice);

}  // namespace convtime::conv
