#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/export.h"

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

/// Return the settings of a call, with one value per spatial dimension.
template <typename Call>
ConvSettings settings_of(const Call& call, std::size_t spatial, bool transposed,
                         std::optional<std::string> policy) {
  c10::SymIntArrayRef output_padding;
  if constexpr (requires { call.output_padding; }) {
    output_padding = call.output_padding;
  }
  return {.stride = per_dimension(call.stride, spatial),
          .padding = per_dimension(call.padding, spatial),
          .dilation = per_dimension(call.dilation, spatial),
          .output_padding = per_dimension(output_padding, spatial),
          .groups = call.groups,
          .transposed = transposed,
          .policy = std::move(policy)};
}

/// With respect to input, weight and bias; gradients that are not requested are undefined.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The arguments of a convolution_backward call, as references.
struct ConvBackwardCall {
  using Signature = Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef, bool,
                              c10::SymIntArrayRef, c10::SymInt, std::array<bool, 3>,
                              std::optional<std::string_view>);

  const at::Tensor& grad_output;
  const at::Tensor& input;
  const at::Tensor& weight;
  c10::SymIntArrayRef stride;
  c10::SymIntArrayRef padding;
  c10::SymIntArrayRef dilation;
  bool transposed;
  c10::SymIntArrayRef output_padding;
  const c10::SymInt& groups;
  std::array<bool, 3> output_mask;
  std::optional<std::string_view> policy;
};

/// Return the call for a forward call's settings.
inline ConvBackwardCall backward_call(const at::Tensor& grad_output, const at::Tensor& input,
                                      const at::Tensor& weight, const ConvSettings& settings,
                                      std::array<bool, 3> output_mask) {
  return {grad_output,
          input,
          weight,
          settings.stride,
          settings.padding,
          settings.dilation,
          settings.transposed,
          settings.output_padding,
          settings.groups,
          output_mask,
          settings.policy};
}

/// Call the op through the dispatcher.
Gradients dispatch(const ConvBackwardCall& call);

/// Return the gradients of a forward call, whose input may be unbatched.
Gradients gradients_of(const at::Tensor& grad_output, const at::Tensor& input,
                       const at::Tensor& weight, const ConvSettings& settings,
                       std::array<bool, 3> output_mask);

/// Return only the gradient of the input, for a call with other tensors.
at::Tensor grad_input_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                         const at::Tensor& input, const at::Tensor& weight);

/// Return only the gradient of the weight, like grad_input_of().
at::Tensor grad_weight_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight);

/// Return only the gradient of the bias.
at::Tensor grad_bias_of(const at::Tensor& grad_output);

/// A class of autograd nodes that derives from one of torch's.
struct NodeType {
  const std::type_info& type;
  const char* torchs_name;  ///< e.g. "ConvolutionBackward0"
};

/// The nodes of a convolution and of its gradients.
CONVTIME_API std::array<NodeType, 2> node_types();

}  // namespace convtime::ops
