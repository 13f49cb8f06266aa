#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/activation.h"
#include "core/export.h"

namespace convtime::conv {

using convtime::Activation;

/// As the ops take it: "relu", "leaky_relu", "gelu_tanh", ...
CONVTIME_API const char* to_string(Activation activation);

/// Reverses to_string; none for a name that is not one of them.
std::optional<Activation> parse_activation(std::string_view name);

/// All names, for messages: "'identity', 'relu', ...".
std::string activation_names();

/// The cuDNN frontend's name of the graph of a convolution and what follows it, which a plan's tag
/// has between the convolution and the engine: "ADD_ADD_RELU_FWD_", empty for a convolution alone.
std::string epilogue_name(bool has_addend, bool has_bias, Activation activation);

}  // namespace convtime::conv
