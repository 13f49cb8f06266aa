#include "ops/conv/policy_request.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>

namespace convtime::ops {

std::optional<std::string> PolicyRequest::for_gradients() const {
  if (benchmark.has_value()) {
    return *benchmark ? "benchmark" : "heuristic";
  }
  return std::nullopt;
}

PolicyRequest parse_policy(const char* op, std::optional<std::string_view> policy,
                           c10::ArrayRef<conv::Pass> passes) {
  if (!policy.has_value()) {
    return {};
  }
  if (*policy == "heuristic" || *policy == "benchmark") {
    return {.benchmark = *policy == "benchmark", .engine = std::nullopt};
  }
  PolicyRequest request;
  try {
    request.engine = conv::parse_tag(*policy);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, op, ": ", error.what());
  }
  const std::optional<conv::Pass> pass = request.engine->pass;
  if (pass.has_value() && std::find(passes.begin(), passes.end(), *pass) == passes.end()) {
    std::string computed;
    for (const conv::Pass candidate : passes) {
      computed += (computed.empty() ? "" : " and ") + std::string(operation_name(candidate));
    }
    TORCH_CHECK(false, op, ": policy '", *policy, "' names an engine of ",
                conv::operation_name(*pass), ", but this call computes ",
                computed.empty() ? "none of cuDNN's operations" : computed);
  }
  return request;
}

}  // namespace convtime::ops
