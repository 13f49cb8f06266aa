#include "conv/engine.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <system_error>

namespace convtime::conv {
namespace {

/// Remove "<prefix><number>" from the front of `text` and return the number; std::nullopt if `text`
/// does not start with it.
std::optional<std::int64_t> take_number(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return std::nullopt;
  }
  const std::string_view digits = text.substr(prefix.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{}) {
    return std::nullopt;
  }
  text = digits.substr(static_cast<std::size_t>(end - digits.data()));
  return number;
}

}  // namespace

std::string epilogue_name(bool has_addend, bool has_bias, Activation activation) {
  const std::string sums = std::string(has_addend ? "ADD_" : "") + (has_bias ? "ADD_" : "");
  switch (activation) {
    case Activation::kRelu:
    case Activation::kRelu6:
    case Activation::kLeakyRelu:
      return sums + "RELU_FWD_";
    case Activation::kGelu:
      return sums + "GELU_FWD_";
    case Activation::kGeluTanh:
      return sums + "GELU_APPROX_TANH_FWD_";
    case Activation::kSilu:
      return sums + "SWISH_FWD_";
    case Activation::kSigmoid:
      return sums + "SIGMOID_FWD_";
    case Activation::kTanh:  // see erratum()
    case Activation::kIdentity:
      break;
  }
  return sums;
}

std::string to_tag(const Engine& engine) {
  std::string tag = "eng" + std::to_string(engine.index);
  for (const Knob& knob : engine.knobs) {
    tag += "_k" + std::to_string(knob.type) + "=" + std::to_string(knob.value);
  }
  return tag;
}

EngineTag parse_tag(std::string_view tag) {
  const std::invalid_argument malformed(
      "policy must be 'heuristic', 'benchmark' or the tag of a cuDNN engine, such as "
      "'eng38_k2=8_k13=1' or 'ConvFwd_eng38_k2=8_k13=1', got '" +
      std::string(tag) + "'");
  EngineTag parsed;
  std::string_view rest = tag;
  for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
    const std::string prefix = std::string(operation_name(pass)) + "_";
    if (rest.starts_with(prefix)) {
      rest.remove_prefix(prefix.size());
      parsed.pass = pass;
      // The names of the epilogue's nodes are in capitals.
      const std::size_t capitals =
          std::min(rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), rest.size());
      parsed.epilogue = rest.substr(0, capitals);
      rest.remove_prefix(capitals);
      break;
    }
  }
  const std::optional<std::int64_t> index = take_number(rest, "eng");
  if (!index.has_value() || *index < 0) {
    throw malformed;
  }
  parsed.engine.index = *index;
  while (!rest.empty()) {
    const std::optional<std::int64_t> type = take_number(rest, "_k");
    const std::optional<std::int64_t> value = take_number(rest, "=");
    const bool twice = type.has_value() &&
                       std::ranges::any_of(parsed.engine.knobs,
                                           [&](const Knob& knob) { return knob.type == *type; });
    if (!type.has_value() || *type < 0 || !value.has_value() || twice) {
      throw malformed;
    }
    parsed.engine.knobs.push_back({*type, *value});
  }
  return parsed;
}

}  // namespace convtime::conv
