#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <string_view>

#include "conv/engine.h"

namespace convtime::ops {

/// What an op's `policy` asks for. Where it asks for nothing, torch.backends.cudnn.benchmark says
/// how plans are selected.
struct PolicyRequest {
  std::optional<bool> benchmark;          ///< "benchmark" or "heuristic"
  std::optional<conv::EngineTag> engine;  ///< a tag

  /// What the gradients of an op take over from it: an engine computes one pass alone.
  std::optional<std::string> for_gradients() const;
};

/// What cuDNN computes for the forward pass: a transposed convolution is the gradient of the
/// convolution that its weight belongs to, with respect to that one's input.
constexpr conv::Pass forward_pass(bool transposed) {
  return transposed ? conv::Pass::kDgrad : conv::Pass::kFprop;
}

/// What cuDNN computes for the gradient of the input.
constexpr conv::Pass input_gradient_pass(bool transposed) {
  return transposed ? conv::Pass::kFprop : conv::Pass::kDgrad;
}

/// Throws c10::Error, in the name of the op, for what is no policy, and for an engine of a pass
/// that is not among those that the op computes, or of another epilogue than the op's (as
/// epilogue_name has it).
PolicyRequest parse_policy(const char* op, std::optional<std::string_view> policy,
                           c10::ArrayRef<conv::Pass> passes, std::string_view epilogue = {});

}  // namespace convtime::ops
