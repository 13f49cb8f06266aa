#include "conv/convolution.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <utility>

#include "conv/backend.h"
#include "core/cuda.h"

namespace convtime::conv {
namespace {

class CudnnSource final : public PlanSource {
 public:
  CudnnSource(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
              Workspace& workspace)
      : handle_(handle), key_(key), operands_(operands), workspace_(workspace) {}

  void run(Plan& plan) override { run_plan(plan, handle_, operands_, workspace_); }

  std::shared_ptr<Plan> rebuild(const PlanChoice& choice) override {
    make_context_current();
    return rebuild_plan(handle_, key_.problem, choice);
  }

  Selection select() override {
    make_context_current();
    if (key_.policy.kind == PolicyKind::kBenchmark && is_capturing()) {
      throw std::runtime_error(
          "plans cannot be timed during CUDA graph capture: call the operator once with the same "
          "shapes before the capture, or use the policy 'heuristic'");
    }
    return select_plan(handle_, key_, operands_, workspace_);
  }

  bool is_capturing() override { return conv::is_capturing(stream_of(handle_)); }

 private:
  /// A thread may have no current context yet. Engines that use the driver API then fail, and the
  /// next engine would be chosen for all threads.
  void make_context_current() const { CONVTIME_CUDA_CHECK(cudaSetDevice(key_.problem.device)); }

  cudnnHandle_t handle_;
  const PlanKey& key_;
  const Operands& operands_;
  Workspace& workspace_;
};

/// Run the plan and return whether it succeeded; the plan has not run in this thread before. A
/// subsequent selection tries it again in its turn, and records why it was refused.
bool runs(Plan& plan, PlanSource& source) {
  try {
    source.run(plan);
    return true;
  } catch (const OutOfMemory&) {
  } catch (const CudnnError&) {
  }
  return false;
}

void note_use(ReadyPlan& ready, PlanSource& source) {
  ready.choice->count_use();
  if (!ready.kept_for_graphs && source.is_capturing()) {
    keep_for_graphs(ready.plan);
    ready.kept_for_graphs = true;
  }
}

}  // namespace

PlanOrigin convolve(const PlanKey& key, PlanSource& source, ReadyPlans& plans,
                    ChoiceTable& choices) {
  bool refused = false;
  if (ReadyPlan* const ready = plans.find(key)) {
    try {
      source.run(*ready->plan);
      note_use(*ready, source);
      return PlanOrigin::kReady;
    } catch (const OutOfMemory&) {
      refused = true;
    }
  } else if (plans.capacity() > 0) {  // otherwise PyTorch selects for each call
    if (std::shared_ptr<SharedChoice> choice = choices.find(key)) {
      ReadyPlan rebuilt = {source.rebuild(choice->choice), choice};
      if (rebuilt.plan != nullptr && runs(*rebuilt.plan, source)) {
        choice->rebuilds.fetch_add(1, std::memory_order_relaxed);
        note_use(rebuilt, source);
        plans.insert(key, std::move(rebuilt));
        return PlanOrigin::kRebuilt;
      }
      refused = true;
    }
  }
  Selection selection = source.select();
  ReadyPlan selected = {
      std::move(selection.plan),
      choices.insert(key, std::move(selection.choice), /*for_all=*/!selection.lacked_memory)};
  note_use(selected, source);
  // If another thread was faster and chose differently, the next call builds that thread's plan.
  const std::shared_ptr<SharedChoice> agreed = choices.find(key);
  if (refused || agreed == nullptr || agreed == selected.choice) {
    plans.insert(key, std::move(selected));
  }
  return PlanOrigin::kSelected;
}

PlanOrigin convolve(cudnnHandle_t handle, const PlanKey& key, const Operands& operands,
                    Workspace& workspace) {
  CudnnSource source(handle, key, operands, workspace);
  return convolve(key, source, plans_of_this_thread(), choice_table());
}

}  // namespace convtime::conv
