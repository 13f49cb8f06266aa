#include "conv/plan.h"

#include <array>
#include <utility>

#include "conv/frontend.h"
#include "conv/tensor_ids.h"

namespace convtime::conv {
namespace {

Descriptor make_variant_pack(const Operands& operands, void* workspace) {
  Descriptor pack = make_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const std::array<void*, 3> pointers = {operands.x, operands.y, operands.w};
  const std::array<std::int64_t, 3> ids = {kIdX, kIdY, kIdW};
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                pointers.data(), pointers.size());
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(),
                ids.size());
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace, 1);
  check_cudnn(cudnnBackendFinalize(pack.get()), "cudnnBackendFinalize of a variant pack");
  return pack;
}

}  // namespace

CudnnPlan::CudnnPlan(cudnn_frontend::ExecutionPlan_v8 plan)
    : plan_(std::make_shared<const cudnn_frontend::ExecutionPlan_v8>(std::move(plan))),
      workspace_bytes_(plan_->getWorkspaceSize()) {}

const std::string& CudnnPlan::tag() const { return plan_->getTag(); }

void CudnnPlan::run(cudnnHandle_t handle, const Operands& operands, void* workspace) {
  if (variant_pack_.get() == nullptr || operands != operands_ || workspace != workspace_) {
    variant_pack_ = make_variant_pack(operands, workspace);
    operands_ = operands;
    workspace_ = workspace;
  }
  check_cudnn(cudnnBackendExecute(handle, plan_->get_raw_desc(), variant_pack_.get()),
              "cudnnBackendExecute");
}

}  // namespace convtime::conv
