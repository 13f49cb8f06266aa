#pragma once

#include <stdexcept>

namespace convtime {

/// Thrown when device activities that could be recorded until now no longer can, or not completely.
class TraceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace convtime
