#pragma once

#include <cstdint>

namespace convtime {

/// What a convolution's epilogue ends with.
enum class Activation : std::int32_t {
  kIdentity,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kGelu,      ///< by the error function
  kGeluTanh,  ///< by its approximation with the hyperbolic tangent
  kSilu,
  kSigmoid,
  kTanh,
};

}  // namespace convtime
