#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace convtime {

/// The one of `values` that to_string() calls `name`. Throws std::invalid_argument where there is
/// none; `what` is what the user knows the choice as.
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
