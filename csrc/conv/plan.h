#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>

#include "conv/backend.h"

namespace cudnn_frontend {
class ExecutionPlan_v8;
}

namespace convtime::conv {

/// The device pointers for one run.
struct Operands {
  void* x;
  void* w;
  void* y;
  void* z = nullptr;  ///< null if the problem has none
  void* b = nullptr;  ///< null if the problem has none

  bool operator==(const Operands&) const = default;
};

/// A built plan. Not every engine is thread-safe, so a plan belongs to one thread and to the device
/// that it was built for.
class Plan {
 public:
  virtual ~Plan() = default;

  /// Return the frontend's name of operation, engine and knobs, e.g. "ConvFwd_eng38_k2=8_k13=1".
  virtual const std::string& tag() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;

  /// Enqueue the convolution on the handle's stream. `workspace` must hold workspace_bytes() and
  /// may be null if that is 0. Throws CudnnError.
  virtual void run(cudnnHandle_t handle, const Operands& operands, void* workspace) = 0;
};

/// A plan of cuDNN.
class CudnnPlan final : public Plan {
 public:
  explicit CudnnPlan(cudnn_frontend::ExecutionPlan_v8 plan);
  ~CudnnPlan() override;

  const std::string& tag() const override;
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  void run(cudnnHandle_t handle, const Operands& operands, void* workspace) override;

  const cudnn_frontend::ExecutionPlan_v8& frontend_plan() const { return *plan_; }

 private:
  std::shared_ptr<const cudnn_frontend::ExecutionPlan_v8> plan_;
  std::int64_t workspace_bytes_;
  // The operands of the last run. A variant pack is immutable, and creating one takes a third of a
  // microsecond; PyTorch's allocator returns the same addresses for call after call.
  Descriptor variant_pack_;
  Operands operands_{};
  void* workspace_ = nullptr;
};

}  // namespace convtime::conv
