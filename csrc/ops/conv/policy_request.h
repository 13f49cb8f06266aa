#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <string_view>

#include "conv/engine.h"

namespace convtime::ops {

/// The contents of an op's `policy`. If it is empty, torch.backends.cudnn.benchmark determines how
/// plans are selected.
struct PolicyRequest {
  std::optional<bool> benchmark;          ///< "benchmark" or "heuristic"
  std::optional<conv::EngineTag> engine;  ///< a tag

  bool is_empty() const { return !benchmark.has_value() && !engine.has_value(); }

  /// Return the policy for the gradients of an op: an engine applies to only one pass.
  std::optional<std::string> for_gradients() const;
};

/// Return the cuDNN operation of the forward pass: a transposed convolution is the input gradient
/// of the convolution that its weight belongs to.
constexpr conv::Pass forward_pass(bool transposed) {
  return transposed ? conv::Pass::kDgrad : conv::Pass::kFprop;
}

/// Return the cuDNN operation for the gradient of the input.
constexpr conv::Pass input_gradient_pass(bool transposed) {
  return transposed ? conv::Pass::kFprop : conv::Pass::kDgrad;
}

/// Parse a policy. Throws c10::Error, prefixed by the op's name, for an invalid policy, for an
/// engine of a pass that the op does not compute, and for an engine of another epilogue (as
/// returned by epilogue_name()).
PolicyRequest parse_policy(const char* op, std::optional<std::string_view> policy,
                           c10::ArrayRef<conv::Pass> passes, std::string_view epilogue = {});

}  // namespace convtime::ops
