#pragma once

#include <cstdint>

namespace convtime {

/// The activation at the end of a convolution's epilogue.
enum class Activation : std::int32_t {
  kIdentity,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kGelu,      ///< with the error function
  kGeluTanh,  ///< with the hyperbolic-tangent approximation
  kSilu,
  kSigmoid,
  kTanh,
};

}  // namespace convtime
