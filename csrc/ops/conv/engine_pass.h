#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "conv/listed_engine.h"
#include "conv/problem.h"
#include "conv/stored_plans.h"
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
    std::function<void()> run;  ///< on the current stream, and in one thread at a time
  };

  /// Take the arguments of cudnn_forward(), or with grad_output of cudnn_backward() for the
  /// gradient of the weight or of the input.
  EnginePass(const at::Tensor& input, const at::Tensor& weight,
             const std::optional<at::Tensor>& grad_output, bool of_weight,
             const ConvParams& params);

  /// Return the pass whose runs convert the operands to another layout first, and the result back.
  EnginePass in_layout(bool channels_last) const;

  /// Return the problem that an op asks a plan for, whichever layout the runs convert to.
  const conv::Problem& problem() const;

  conv::GpuKind gpu() const;

  /// Return what the engines compute; each run overwrites it.
  const at::Tensor& result() const;

  /// List all engines, without building a plan.
  std::vector<conv::ListedEngine> list() const;

  /// Build the plan of an engine, named by a tag.
  Ready build(std::string_view tag) const;

 private:
  Operation operation_;
  std::optional<bool> channels_last_;  ///< the layout that a run converts to
  conv::Problem planned_;              ///< what plans are built for
};

}  // namespace convtime::ops
