#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>

#include "conv/plan.h"
#include "conv/plan_cache.h"
#include "conv/problem.h"
#include "conv/selection.h"

namespace convtime::conv {

/// The origin of the plan that computed a call.
enum class PlanOrigin : std::int32_t {
  kReady,     ///< the thread already had it
  kRebuilt,   ///< rebuilt from a choice that a thread had made before
  kSelected,  ///< no plan existed, or it could not be used
};

/// The cuDNN operations that one call needs, for one convolution with given operands.
class PlanSource {
 public:
  virtual ~PlanSource() = default;

  /// Compute the convolution with a plan. Throws like run_plan().
  virtual void run(Plan& plan) = 0;

  /// See rebuild_plan().
  virtual std::shared_ptr<Plan> rebuild(const PlanChoice& choice) = 0;

  /// See select_plan().
  virtual Selection select() = 0;

  /// Return whether the stream is being captured into a CUDA graph.
  virtual bool is_capturing() = 0;
};

/// Compute the convolution with the thread's plan if it has one, else with a plan of the choice
/// that any thread has made, else with a plan of a new selection. As in ATen, a plan that has run
/// in this thread before is replaced by a new selection only if its memory cannot be allocated. A
/// plan that has not run yet is also replaced if cuDNN refuses it. All other errors are thrown.
PlanOrigin convolve(const PlanKey& key, PlanSource& source, ReadyPlans& plans,
                    ChoiceTable& choices);

/// The same with cuDNN, on the handle's stream, with this thread's plans and the choices that all
/// threads share. Throws like select_plan(), and std::runtime_error if plans would have to be timed
/// on a stream that is being captured into a CUDA graph.
PlanOrigin convolve(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                    Workspace& workspace);

}  // namespace convtime::conv
