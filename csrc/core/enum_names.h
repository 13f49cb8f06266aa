#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace convtime {

/// An enum whose values users know by names: names_of(), declared next to the enum, returns the
/// names of its values, which count from 0.
template <typename Enum>
concept NamedEnum = requires(Enum value) { names_of(value); };

template <NamedEnum Enum>
constexpr const char* to_string(Enum value) {
  return names_of(value).at(static_cast<std::size_t>(value));
}

/// Return the value with that name, if there is one.
template <NamedEnum Enum>
constexpr std::optional<Enum> find_enum(std::string_view name) {
  constexpr auto kNames = names_of(Enum{});
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

/// Return all names, for messages: "'auto', 'kernel'".
template <NamedEnum Enum>
std::string quoted_names() {
  std::string quoted;
  for (const char* const name : names_of(Enum{})) {
    quoted += (quoted.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  return quoted;
}

/// Return the value with that name. Throws std::invalid_argument if there is none; `what` is the
/// user's name of the option.
template <NamedEnum Enum>
Enum enum_from_string(const std::string& what, std::string_view name) {
  const std::optional<Enum> value = find_enum<Enum>(name);
  if (!value.has_value()) {
    throw std::invalid_argument(what + " must be one of " + quoted_names<Enum>() + ", got '" +
                                std::string(name) + "'");
  }
  return *value;
}

}  // namespace convtime
