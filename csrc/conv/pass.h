#pragma once

#include <cstdint>

namespace convtime::conv {

/// cuDNN's three convolution operations for y = conv(x, w).
enum class Pass : std::int32_t { kFprop, kDgrad, kWgrad };

}  // namespace convtime::conv
