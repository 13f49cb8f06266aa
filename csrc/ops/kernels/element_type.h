#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kernels/element_type.h"

namespace convtime::ops {

/// Return the element type of a tensor that the ops accept.
inline ElementType element_type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return ElementType::kHalf;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kFloat:
      return ElementType::kFloat;
    case at::kDouble:
      return ElementType::kDouble;
    default:
      TORCH_INTERNAL_ASSERT(false,
                            "unsupported dtype not rejected by the op: ", tensor.scalar_type());
  }
}

}  // namespace convtime::ops
