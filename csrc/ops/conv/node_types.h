#pragma once

#include <array>
#include <typeinfo>

#include "core/export.h"

namespace convtime::ops {

/// A class of autograd nodes that derives from one of torch's.
struct NodeType {
  const std::type_info& type;
  const char* torchs_name;  ///< e.g. "ConvolutionBackward0"
};

/// The nodes of a convolution and of its gradients.
CONVTIME_API std::array<NodeType, 2> node_types();

}  // namespace convtime::ops
