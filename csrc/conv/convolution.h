#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>

#include "conv/plan.h"
#include "conv/plan_cache.h"
#include "conv/policy.h"
#include "conv/selection.h"

namespace convtime::conv {

/// How a call came by the plan that computed it.
enum class PlanOrigin : std::int32_t {
  kReady,     ///< the thread had it
  kRebuilt,   ///< it was built of the choice that a thread had made before
  kSelected,  ///< there was no plan, or it could not be used
};

/// What a call needs of cuDNN, for one convolution of certain operands.
class PlanSource {
 public:
  virtual ~PlanSource() = default;

  /// Computes the convolution with a plan. Throws as run_plan does.
  virtual void run(Plan& plan) = 0;

  /// As rebuild_plan.
  virtual std::shared_ptr<Plan> rebuild(const PlanChoice& choice) = 0;

  /// As select_plan.
  virtual Selection select() = 0;

  /// Whether a CUDA graph is being captured from what runs.
  virtual bool is_capturing() = 0;
};

/// Computes the convolution with the thread's plan where it has one, else with one of the choice
/// that any thread made, else of a choice of its own. As in ATen, a plan that has run in this
/// thread before gives way to a new selection only where there is no memory for it, and one that
/// has not also where cuDNN refuses it; whatever else fails is thrown.
PlanOrigin convolve(const PlanKey& key, PlanSource& source, ReadyPlans& plans,
                    ChoiceTable& choices);

/// The same by cuDNN, on the handle's stream, with this thread's plans and all threads' choices.
/// Throws as select_plan does, and std::runtime_error where plans would have to be timed on a
/// stream that a CUDA graph is being captured from.
PlanOrigin convolve(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                    Workspace& workspace);

}  // namespace convtime::conv
