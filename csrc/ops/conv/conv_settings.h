#pragma once

#include <c10/core/SymIntArrayRef.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace convtime::ops {

/// Return one value per spatial dimension, as PyTorch's backward requires; an empty argument
/// becomes zeros.
inline std::vector<c10::SymInt> per_dimension(c10::SymIntArrayRef values, std::size_t spatial) {
  if (values.size() == spatial) {
    return values.vec();
  }
  return std::vector<c10::SymInt>(spatial, values.empty() ? c10::SymInt(0) : values.front());
}

/// The settings of a convolution that an autograd node saves, in addition to its tensors.
struct ConvSettings {
  std::vector<c10::SymInt> stride;
  std::vector<c10::SymInt> padding;
  std::vector<c10::SymInt> dilation;
  std::vector<c10::SymInt> output_padding;
  c10::SymInt groups;
  bool transposed = false;
  std::optional<std::string> policy;

  template <typename Self>
  static auto fields(Self& self) {
    return std::tie(self.stride, self.padding, self.dilation, self.output_padding, self.groups,
                    self.transposed, self.policy);
  }
};

}  // namespace convtime::ops
