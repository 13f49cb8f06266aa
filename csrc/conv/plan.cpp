#include "conv/plan.h"

#include <array>
#include <cstddef>
#include <utility>

#include "conv/graph.h"
#include "core/cuda.h"

namespace convtime::conv {
namespace {

Descriptor make_variant_pack(const Operands& operands, void* workspace) {
  Descriptor pack = make_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  std::array<void*, 5> pointers = {operands.x, operands.y, operands.w};
  std::array<std::int64_t, 5> ids = {kIdX, kIdY, kIdW};
  std::int64_t count = 3;
  const auto add = [&](void* pointer, std::int64_t id) {
    if (pointer != nullptr) {
      pointers[static_cast<std::size_t>(count)] = pointer;
      ids[static_cast<std::size_t>(count++)] = id;
    }
  };
  add(operands.z, kIdZ);
  add(operands.b, kIdB);
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                pointers.data(), count);
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(),
                count);
  set_attribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace, 1);
  check_cudnn(cudnnBackendFinalize(pack.get()), "cudnnBackendFinalize of a variant pack");
  return pack;
}

}  // namespace

CudnnPlan::CudnnPlan(cudnn_frontend::ExecutionPlan_v8 plan)
    : plan_(std::make_shared<const cudnn_frontend::ExecutionPlan_v8>(std::move(plan))),
      workspace_bytes_(plan_->getWorkspaceSize()) {}

CudnnPlan::~CudnnPlan() {
  // Destroying the plan unloads the kernels that were compiled for it, possibly while another CUDA
  // graph is being captured.
  const RelaxedCapture relaxed;
  if (relaxed.process_ends()) {
    // Leaked on purpose: cuDNN may already be gone.
    new std::pair(std::move(plan_), std::move(variant_pack_));
    return;
  }
  variant_pack_ = {};
  plan_.reset();
}

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
