#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/activation.h"
#include "core/enum_names.h"
#include "core/export.h"

namespace convtime {

/// The names that the ops accept.
template <>
inline constexpr auto enum_names<Activation> =
    std::to_array<EnumName<Activation>>({{Activation::kIdentity, "identity"},
                                         {Activation::kRelu, "relu"},
                                         {Activation::kRelu6, "relu6"},
                                         {Activation::kLeakyRelu, "leaky_relu"},
                                         {Activation::kGelu, "gelu"},
                                         {Activation::kGeluTanh, "gelu_tanh"},
                                         {Activation::kSilu, "silu"},
                                         {Activation::kSigmoid, "sigmoid"},
                                         {Activation::kTanh, "tanh"}});

}  // namespace convtime

namespace convtime::conv {

using convtime::Activation;
using convtime::to_string;

/// Inverse of to_string(); std::nullopt for an unknown name.
CONVTIME_API std::optional<Activation> parse_activation(std::string_view name);

/// Return all names, for messages: "'identity', 'relu', ...".
std::string activation_names();

/// Return the cuDNN frontend's name of the epilogue graph, e.g. "ADD_ADD_RELU_FWD_"; empty for a
/// convolution without an epilogue. A plan's tag has it between the convolution and the engine.
std::string epilogue_name(bool has_addend, bool has_bias, Activation activation);

}  // namespace convtime::conv
