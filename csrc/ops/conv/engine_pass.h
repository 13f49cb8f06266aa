#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "conv/listed_engine.h"
#include "conv/problem.h"
#include "core/export.h"
#include "ops/conv/convolutions.h"

namespace convtime::ops {

/// One cuDNN operation of a convolution, which any engine can compute. No choice of a plan is
/// stored for it. It keeps its tensors. Methods throw c10::Error.
class CONVTIME_API EnginePass {
 public:
  /// The operands with the layouts that the op gives them.
  struct Operation {
    conv::Problem problem;
    at::Tensor x, w, y;
  };
  struct Ready {
    std::int64_t workspace_bytes;
    std::function<void()> run;  ///< on the current stream, and only in this thread
  };

  /// Take the arguments of cudnn_forward(), or with grad_output of cudnn_backward() for the
  /// gradient of the weight or of the input.
  EnginePass(const at::Tensor& input, const at::Tensor& weight,
             const std::optional<at::Tensor>& grad_output, bool of_weight,
             const ConvParams& params);

  /// Return what the engines compute; each run overwrites it.
  const at::Tensor& result() const;

  /// List all engines, without building a plan.
  std::vector<conv::ListedEngine> list() const;

  /// Build the plan of an engine, named by a tag.
  Ready build(std::string_view tag) const;

 private:
  Operation operation_;
};

}  // namespace convtime::ops
