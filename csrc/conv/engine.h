#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/pass.h"

namespace convtime::conv {

/// The value of one of an engine's settings, by the number that cudnnBackendKnobType_t gives it.
struct Knob {
  std::int64_t type;
  std::int64_t value;

  bool operator==(const Knob&) const = default;
};

/// One of cuDNN's engines for an operation. A knob that is not named keeps the engine's default.
struct Engine {
  std::int64_t index = -1;
  std::vector<Knob> knobs;

  bool operator==(const Engine&) const = default;
};

/// What a plan's tag says, e.g. "ConvFwd_eng38_k2=8_k13=1" or "ConvFwd_ADD_ADD_RELU_FWD_eng0".
struct EngineTag {
  std::optional<Pass> pass;  ///< none where the tag begins with the engine, as "eng38_k2=8_k13=1"
  std::string epilogue;      ///< as epilogue_name has it: what the graph has after the convolution
  Engine engine;
};

/// The cuDNN frontend's name of the operation, which a plan's tag begins with: "ConvFwd",
/// "ConvBwdData" or "ConvBwdFilter".
const char* operation_name(Pass pass);

/// Knobs stand in the engine's order.
std::string to_tag(const Engine& engine);

/// Reverses to_tag, with an operation's name in front or without. Throws std::invalid_argument.
EngineTag parse_tag(std::string_view tag);

}  // namespace convtime::conv
