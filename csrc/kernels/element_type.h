#pragma once

#include <cstdint>

namespace convtime {

/// The element type of the tensors that kernels take.
enum class ElementType : std::int8_t { kHalf, kBFloat16, kFloat, kDouble };

}  // namespace convtime
