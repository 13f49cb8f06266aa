#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.h"
#include "core/enum_names.h"
#include "core/export.h"

namespace convtime {

/// The names that the ops accept.
constexpr auto names_of(Activation /*all*/) {
  return std::array{"identity",  "relu", "relu6",   "leaky_relu", "gelu",
                    "gelu_tanh", "silu", "sigmoid", "tanh"};
}

}  // namespace convtime

namespace convtime::conv {

using convtime::Activation;
using convtime::to_string;

/// cuDNN's three convolution operations for y = conv(x, w).
enum class Pass : std::int32_t { kFprop, kDgrad, kWgrad };
constexpr auto names_of(Pass /*all*/) { return std::array{"fprop", "dgrad", "wgrad"}; }

/// The value of an engine setting; `type` is the number in cudnnBackendKnobType_t.
struct Knob {
  std::int64_t type;
  std::int64_t value;

  bool operator==(const Knob&) const = default;
};

/// A cuDNN engine for an operation. A knob that is not listed keeps the engine's default.
struct Engine {
  std::int64_t index = -1;
  std::vector<Knob> knobs;

  bool operator==(const Engine&) const = default;
};

/// The contents of a plan's tag, e.g. "ConvFwd_eng38_k2=8_k13=1" or
/// "ConvFwd_ADD_ADD_RELU_FWD_eng0".
struct EngineTag {
  std::optional<Pass> pass;  ///< none if the tag starts with the engine, e.g. "eng38_k2=8_k13=1"
  std::string epilogue;      ///< the nodes after the convolution, as returned by epilogue_name()
  Engine engine;
};

/// Return the cuDNN frontend's name of the operation, with which a plan's tag starts: "ConvFwd",
/// "ConvBwdData" or "ConvBwdFilter".
inline const char* operation_name(Pass pass) {
  constexpr const char* kNames[] = {"ConvFwd", "ConvBwdData", "ConvBwdFilter"};
  return kNames[static_cast<std::size_t>(pass)];
}

/// Return the cuDNN frontend's name of the epilogue graph, e.g. "ADD_ADD_RELU_FWD_"; empty for a
/// convolution without an epilogue. A plan's tag has it between the convolution and the engine.
std::string epilogue_name(bool has_addend, bool has_bias, Activation activation);

/// Return the tag, with the knobs in the engine's order.
std::string to_tag(const Engine& engine);

/// Inverse of to_tag(), with or without a leading operation name. Throws std::invalid_argument.
CONVTIME_API EngineTag parse_tag(std::string_view tag);

}  // namespace convtime::conv
