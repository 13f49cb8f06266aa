#pragma once

namespace convtime {

/// Bounds of the loss scale in training steps: its reciprocal also stays a normal number.
inline constexpr float kLeastLossScale = 0x1p-126F;
inline constexpr float kMostLossScale = 0x1p126F;

}  // namespace convtime
