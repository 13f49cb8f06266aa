#include "conv/activation.h"

#include <array>
#include <stdexcept>

namespace convtime::conv {
namespace {

struct Names {
  Activation activation;
  const char* name;
  const char* node;  ///< cuDNN's pointwise operation; empty if none is used
};

constexpr std::array<Names, 9> kNames = {
    {{Activation::kIdentity, "identity", ""},
     {Activation::kRelu, "relu", "RELU_FWD_"},
     {Activation::kRelu6, "relu6", "RELU_FWD_"},
     {Activation::kLeakyRelu, "leaky_relu", "RELU_FWD_"},
     {Activation::kGelu, "gelu", "GELU_FWD_"},
     {Activation::kGeluTanh, "gelu_tanh", "GELU_APPROX_TANH_FWD_"},
     {Activation::kSilu, "silu", "SWISH_FWD_"},
     {Activation::kSigmoid, "sigmoid", "SIGMOID_FWD_"},
     {Activation::kTanh, "tanh", ""}}};

const Names& names_of(Activation activation) {
  for (const Names& names : kNames) {
    if (names.activation == activation) {
      return names;
    }
  }
  throw std::logic_error("unknown activation");
}

}  // namespace

const char* to_string(Activation activation) { return names_of(activation).name; }

std::optional<Activation> parse_activation(std::string_view name) {
  for (const Names& names : kNames) {
    if (names.name == name) {
      return names.activation;
    }
  }
  return std::nullopt;
}

std::string activation_names() {
  std::string text;
  for (const Names& names : kNames) {
    text += (text.empty() ? "'" : ", '") + std::string(names.name) + "'";
  }
  return text;
}

std::string epilogue_name(bool has_addend, bool has_bias, Activation activation) {
  return std::string(has_addend ? "ADD_" : "") + (has_bias ? "ADD_" : "") +
         names_of(activation).node;
}

}  // namespace convtime::conv
