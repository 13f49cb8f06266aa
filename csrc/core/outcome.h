#pragma once

#include <string>

namespace convtime {

/// The value that was used, and why it is not the requested one; empty if it is.
template <typename Value>
struct Outcome {
  Value value{};
  std::string reason{};
};

}  // namespace convtime
