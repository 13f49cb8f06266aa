#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace convtime {

/// Return the element of `values` that to_string() maps to `name`. Throws std::invalid_argument if
/// none does; `what` is the user's name of the option.
template <typename Enum, std::size_t N>
Enum enum_from_string(const std::array<Enum, N>& values, const std::string& what,
                      const std::string& name) {
  std::string allowed;
  for (const Enum value : values) {
    if (name == to_string(value)) {
      return value;
    }
    allowed += (allowed.empty() ? "'" : ", '") + std::string(to_string(value)) + "'";
  }
  throw std::invalid_argument(what + " must be one of " + allowed + ", got '" + name + "'");
}

}  // namespace convtime
