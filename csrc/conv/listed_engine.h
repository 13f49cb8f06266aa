#pragma once

#include <cudnn.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/engine.h"
#include "conv/problem.h"

namespace convtime::conv {

/// The values that an engine allows for one of its knobs.
struct KnobRange {
  std::int64_t type;  ///< the number in cudnnBackendKnobType_t
  std::int64_t minimum;
  std::int64_t maximum;
  std::int64_t step;  ///< 0 or 1: every value between them

  bool allows(std::int64_t value) const;
};

/// What cuDNN says of an engine configuration, without building a plan.
struct EngineFacts {
  std::vector<KnobRange> knobs;
  std::vector<std::string> numerical_notes;  ///< cuDNN's names, e.g. "TENSOR_CORE"
  std::vector<std::string> behavior_notes;
  std::optional<std::int64_t> workspace_bytes;  ///< none where cuDNN knows it only of a plan
  std::optional<std::int64_t> shared_memory_bytes;
};

/// Where cuDNN lists an engine.
struct ListPlace {
  std::string list;  ///< "instant", "a", "b" or "fallback", or "index" for all engines
  std::int64_t position = 0;
};

/// An engine with the knobs that a list gives it, or with the engine's defaults.
struct ListedEngine {
  std::string tag;
  Engine engine;
  std::vector<ListPlace> places;
  EngineFacts facts;        ///< empty for an engine that does not support the problem
  std::string excluded;     ///< why PyTorch does not run it; empty if it may
  std::string unsupported;  ///< cuDNN's reason why it cannot run the problem; empty if it can
};

/// List all engines that cuDNN has for the problem's operation: first those of its lists, then the
/// others by their index. No plan is built.
std::vector<ListedEngine> list_engines(cudnnHandle_t handle, const Problem& problem);

/// Return why an engine must not compute a problem: cuDNN does not support it or a knob, PyTorch
/// excludes it, or an erratum forbids it. Empty if none is known. No plan is built.
std::string why_unusable(cudnnHandle_t handle, const Problem& problem, const Engine& engine);

}  // namespace convtime::conv
