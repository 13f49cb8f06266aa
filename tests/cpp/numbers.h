#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace convtime {

inline std::vector<double> one_to(std::size_t count) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

}  // namespace convtime
