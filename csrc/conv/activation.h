#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/activation.h"
#include "core/export.h"

namespace convtime::conv {

using convtime::Activation;

/// Return the name that the ops accept: "relu", "leaky_relu", "gelu_tanh", ...
CONVTIME_API const char* to_string(Activation activation);

/// Inverse of to_string(); std::nullopt for an unknown name.
CONVTIME_API std::optional<Activation> parse_activation(std::string_view name);

/// Return all names, for messages: "'identity', 'relu', ...".
std::string activation_names();

/// Return the cuDNN frontend's name of the epilogue graph, e.g. "ADD_ADD_RELU_FWD_"; empty for a
/// convolution without an epilogue. A plan's tag has it between the convolution and the engine.
std::string epilogue_name(bool has_addend, bool has_bias, Activation activation);

}  // namespace convtime::conv
