#pragma once

namespace convtime {

/// How far training steps change their loss scale: its reciprocal stays an ordinary number, too.
inline constexpr float kLeastLossScale = 0x1p-126F;
inline constexpr float kMostLossScale = 0x1p126F;

}  // namespace convtime
