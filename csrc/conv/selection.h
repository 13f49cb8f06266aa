#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv/plan.h"
#include "conv/policy.h"
#include "core/export.h"

namespace convtime::conv {

/// Where a plan's engine comes from.
enum class Source : std::int32_t {
  kInstant,    ///< cuDNN's heuristics
  kFallback,   ///< cuDNN's list for when those have nothing that runs
  kBenchmark,  ///< both, by one timed run of each
  kExplicit,   ///< the caller
};

CONVTIME_API const char* to_string(Source source);

/// Which plan was selected for a problem, and what there is to know about it. It belongs to no
/// thread: each builds its own plan of it.
struct PlanChoice {
  std::string tag;
  Engine engine;
  Source source = Source::kInstant;
  std::int64_t workspace_bytes = 0;
  std::vector<std::string> numerical_notes;  ///< cuDNN's names, e.g. "TENSOR_CORE"
  std::vector<std::string> behavior_notes;
  std::vector<std::string> refused;  ///< what came before it and did not run, as "<tag>: <why>"
  std::vector<std::string> timed;    ///< kBenchmark: the plans that were timed, in that order
};

/// There is no memory for what a plan needs beside its operands.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// None of the engines that cuDNN lists for a problem runs it.
class NoEngine : public std::runtime_error {
 public:
  NoEngine(const std::string& text, bool lacked_memory)
      : std::runtime_error(text), lacked_memory_(lacked_memory) {}

  /// Whether one of them might have, with more memory.
  bool lacked_memory() const { return lacked_memory_; }

 private:
  bool lacked_memory_;
};

/// Memory for plans, in the order of the handle's stream.
class Workspace {
 public:
  virtual ~Workspace() = default;

  /// Room for that many bytes, which lasts until more is reserved; null where there is none.
  virtual void* reserve(std::int64_t bytes) = 0;

  /// The most that one plan may ask for while plans are timed.
  virtual std::int64_t largest_block() = 0;

  /// Gives up what is reserved, and gives what timing took back to the device where PyTorch would.
  virtual void trim() = 0;
};

/// Runs a plan with the workspace that it asks for. Throws OutOfMemory where there is none,
/// CudnnError where cuDNN refuses the plan, and CudaError where that is because CUDA has failed.
void run_plan(Plan& plan, cudnnHandle_t handle, const Operands& operands, Workspace& workspace);

struct Selection {
  std::shared_ptr<Plan> plan;
  PlanChoice choice;
  bool lacked_memory = false;  ///< for a plan that came before it
};

/// Selects by the key's policy, and computes the convolution with the plan (those that are timed
/// compute it several times). The heuristics and the timing follow ATen, native/cudnn/Conv_v8.cpp:
/// a plan that cuDNN refuses, or that there is no memory for, gives way to the next, and whatever
/// else fails is thrown. Throws std::invalid_argument for an engine or a knob that cuDNN does not
/// have for the problem or that the errata forbid, and NoEngine that names the refused plans where
/// none runs.
Selection select_plan(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                      Workspace& workspace);

/// This thread's own plan of a choice that was made for the problem; null where cuDNN does not
/// build the same plan again from engine and knobs.
std::shared_ptr<Plan> rebuild_plan(cudnnHandle_t handle, const Problem& problem,
                                   const PlanChoice& choice);

}  // namespace convtime::conv
