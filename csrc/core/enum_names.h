#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace convtime {

template <typename Enum>
struct EnumName {
  Enum value;
  const char* name;
};

/// The names that users know an enum's values by. An enum with names specializes this right after
/// its declaration.
template <typename Enum>
inline constexpr std::array<EnumName<Enum>, 0> enum_names{};

/// Return the name in enum_names.
template <typename Enum>
  requires(!enum_names<Enum>.empty())
constexpr const char* to_string(Enum value) {
  for (const EnumName<Enum>& entry : enum_names<Enum>) {
    if (entry.value == value) {
      return entry.name;
    }
  }
  return "unknown";
}

/// Return the element of `values` that to_string() maps to `name`. Throws std::invalid_argument if
/// none does; `what` is the user's name of the option.
template <typename Enum, std::size_t N>
Enum enum_from_string(const std::array<Enum, N>& values, const std::string& what,
                      std::string_view name) {
  std::string allowed;
  for (const Enum value : values) {
    if (name == to_string(value)) {
      return value;
    }
    allowed += (allowed.empty() ? "'" : ", '") + std::string(to_string(value)) + "'";
  }
  throw std::invalid_argument(what + " must be one of " + allowed + ", got '" + std::string(name) +
                              "'");
}

/// The same for all values that have names.
template <typename Enum>
Enum enum_from_string(const std::string& what, std::string_view name) {
  std::array<Enum, enum_names<Enum>.size()> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = enum_names<Enum>[i].value;
  }
  return enum_from_string(values, what, name);
}

}  // namespace convtime
