#include "conv/convolution.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "conv/plan_cache.h"
#include "core/cuda_check.h"

namespace convtime::conv {
namespace {

bool is_capturing(cudnnHandle_t handle) {
  cudaStream_t stream = nullptr;
  check_cudnn(cudnnGetStream(handle, &stream), "cudnnGetStream");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CONVTIME_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Whether it ran. A selection that follows tries the plan again where it is next in line, and then
/// keeps what it was refused for.
bool runs(Plan& plan, cudnnHandle_t handle, const Operands& operands, Workspace& workspace) {
  try {
    run_plan(plan, handle, operands, workspace);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

void convolve(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
              Workspace& workspace) {
  ReadyPlans& plans = plans_of_this_thread();
  ReadyPlan* const ready = plans.find(key);
  if (ready != nullptr && runs(ready->plan, handle, operands, workspace)) {
    ready->choice->count_use();
    return;
  }
  // Makes the device's context the thread's. It may have none yet, and then engines that go through
  // the driver fail: the next one would be chosen, for all threads.
  CONVTIME_CUDA_CHECK(cudaSetDevice(key.problem.device));
  std::shared_ptr<SharedChoice> refused;
  if (ready != nullptr) {
    refused = ready->choice;
  } else if ((refused = choice_table().find(key)) != nullptr) {
    std::optional<Plan> plan = rebuild_plan(handle, key.problem, refused->choice);
    if (plan.has_value() && runs(*plan, handle, operands, workspace)) {
      refused->count_use();
      plans.insert(key, {std::move(*plan), std::move(refused)});
      return;
    }
  }
  if (key.policy.kind == PolicyKind::kBenchmark && is_capturing(handle)) {
    throw std::runtime_error(
        "plans cannot be timed while a CUDA graph is captured: call it once with the same shapes "
        "before the capture, or with the policy 'heuristic'");
  }
  Selection selection = select_plan(handle, key, operands, workspace);
  std::shared_ptr<SharedChoice> choice =
      choice_table().insert(key, std::move(selection.choice), refused.get());
  choice->count_use();
  if (ready == nullptr && choice->choice.tag != selection.plan.tag()) {
    return;  // another thread was faster and chose differently: the next call builds that one
  }
  plans.insert(key, {std::move(selection.plan), std::move(choice)});
}

}  // namespace convtime::conv
