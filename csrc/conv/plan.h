#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cudnn_frontend {
class ExecutionPlan_v8;
}

namespace convtime::conv {

/// The device pointers of one run.
struct Operands {
  void* x;
  void* w;
  void* y;
  void* workspace;  ///< Plan::workspace_bytes() bytes; may be null where that is 0
};

/// A built cuDNN execution plan. Not every engine is thread-safe, so it belongs to one thread, and
/// to the device that it was built for.
class Plan {
 public:
  explicit Plan(cudnn_frontend::ExecutionPlan_v8 plan);

  /// The frontend's name of operation, engine and knobs, e.g. "ConvFwd_eng38_k2=8_k13=1".
  const std::string& tag() const;
  std::int64_t workspace_bytes() const;

  /// Enqueues the convolution on the handle's stream. Throws std::runtime_error with cuDNN's text.
  void run(cudnnHandle_t handle, const Operands& operands) const;

 private:
  std::shared_ptr<const cudnn_frontend::ExecutionPlan_v8> plan_;
};

}  // namespace convtime::conv
