#pragma once

#include <stdexcept>

namespace convtime {

/// What a device does could be recorded until now, and can no longer, or not in full.
class TraceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace convtime
