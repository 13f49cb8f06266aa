#include "ops/conv/policy_request.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace convtime::ops {
namespace {

/// Return the start of a tag, without the last underscore.
std::string graph_name(conv::Pass pass, std::string_view epilogue) {
  std::string name = conv::operation_name(pass);
  if (!epilogue.empty()) {
    name += "_";
    name += epilogue.substr(0, epilogue.size() - 1);
  }
  return name;
}

}  // namespace

std::optional<std::string> PolicyRequest::for_gradients() const {
  if (benchmark.has_value()) {
    return *benchmark ? "benchmark" : "heuristic";
  }
  return std::nullopt;
}

PolicyRequest parse_policy(const char* op, std::optional<std::string_view> policy,
                           c10::ArrayRef<conv::Pass> passes, std::string_view epilogue) {
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
  const bool is_computed = std::find(passes.begin(), passes.end(), pass) != passes.end() &&
                           request.engine->epilogue == epilogue;
  if (pass.has_value() && !is_computed) {
    std::string computed;
    for (const conv::Pass candidate : passes) {
      computed += computed.empty() ? "" : " and ";
      computed += graph_name(candidate, epilogue);
    }
    TORCH_CHECK(false, op, ": policy '", *policy, "' names an engine of ",
                graph_name(*pass, request.engine->epilogue), ", but this call computes ",
                computed.empty() ? "none of cuDNN's operations" : computed);
  }
  return request;
}

}  // namespace convtime::ops
