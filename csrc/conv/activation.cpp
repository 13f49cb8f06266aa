#include "conv/activation.h"

namespace convtime::conv {
namespace {

/// cuDNN's pointwise operations for activations that a plan can contain.
constexpr EnumName<Activation> kNodes[] = {{Activation::kRelu, "RELU_FWD_"},
                                           {Activation::kRelu6, "RELU_FWD_"},
                                           {Activation::kLeakyRelu, "RELU_FWD_"},
                                           {Activation::kGelu, "GELU_FWD_"},
                                           {Activation::kGeluTanh, "GELU_APPROX_TANH_FWD_"},
                                           {Activation::kSilu, "SWISH_FWD_"},
                                           {Activation::kSigmoid, "SIGMOID_FWD_"}};

}  // namespace

std::optional<Activation> parse_activation(std::string_view name) {
  for (const auto& entry : enum_names<Activation>) {
    if (entry.name == name) {
      return entry.value;
    }
  }
  return std::nullopt;
}

std::string activation_names() {
  std::string text;
  for (const auto& entry : enum_names<Activation>) {
    text += (text.empty() ? "'" : ", '") + std::string(entry.name) + "'";
  }
  return text;
}

std::string epilogue_name(bool has_addend, bool has_bias, Activation activation) {
  std::string name = std::string(has_addend ? "ADD_" : "") + (has_bias ? "ADD_" : "");
  for (const auto& [value, node] : kNodes) {
    name += value == activation ? node : "";
  }
  return name;
}

}  // namespace convtime::conv
