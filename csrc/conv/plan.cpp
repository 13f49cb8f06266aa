#include "conv/plan.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "conv/frontend.h"
#include "conv/tensor_ids.h"

namespace convtime::conv {

Plan::Plan(cudnn_frontend::ExecutionPlan_v8 plan)
    : plan_(std::make_shared<const cudnn_frontend::ExecutionPlan_v8>(std::move(plan))) {}

const std::string& Plan::tag() const { return plan_->getTag(); }

std::int64_t Plan::workspace_bytes() const { return plan_->getWorkspaceSize(); }

void Plan::run(cudnnHandle_t handle, const Operands& operands) const {
  std::array<void*, 3> pointers = {operands.x, operands.y, operands.w};
  std::array<std::int64_t, 3> ids = {kIdX, kIdY, kIdW};
  auto variant_pack = cudnn_frontend::VariantPackBuilder()
                          .setWorkspacePointer(operands.workspace)
                          .setDataPointers(pointers.size(), pointers.data())
                          .setUids(ids.size(), ids.data())
                          .build();
  const cudnnStatus_t status =
      cudnnBackendExecute(handle, plan_->get_raw_desc(), variant_pack.get_raw_desc());
  if (status != CUDNN_STATUS_SUCCESS) {
    std::array<char, 1024> details{};
    cudnnGetLastErrorString(details.data(), details.size());
    throw std::runtime_error("cuDNN refused to run plan " + tag() + ": " +
                             cudnnGetErrorString(status) + " " + details.data());
  }
}

}  // namespace convtime::conv
