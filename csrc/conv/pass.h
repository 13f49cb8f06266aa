#pragma once

#include <cstdint>

namespace convtime::conv {

/// What is computed of y = conv(x, w): cuDNN's three convolution operations.
enum class Pass : std::int32_t { kFprop, kDgrad, kWgrad };

}  // namespace convtime::conv
