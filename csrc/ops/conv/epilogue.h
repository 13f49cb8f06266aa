#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <string_view>

#include "core/export.h"
#include "ops/conv/activation.h"
#include "ops/conv/convolutions.h"

namespace convtime::ops {

/// One op, by its functions' names in Python.
inline constexpr std::array<ConvOp, 3> kConvEpilogue = {
    {{"conv1d_epilogue", 1, false}, {"conv2d_epilogue", 2, false}, {"conv3d_epilogue", 3, false}}};

/// The arguments of a call of convolution_epilogue. It borrows them all.
struct EpilogueCall {
  const at::Tensor& input;
  const at::Tensor& weight;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& other;
  c10::SymIntArrayRef stride;
  c10::SymIntArrayRef padding;
  c10::SymIntArrayRef dilation;
  const c10::SymInt& groups;
  std::string_view activation;
  double alpha;
  double negative_slope;
  std::optional<std::string_view> policy;
};

/// Calls the op through the dispatcher.
CONVTIME_API at::Tensor dispatch(const EpilogueCall& call);

/// By its function's name in Python, which errors begin with. Throws for a weight of no such rank.
const ConvOp& op_of(const EpilogueCall& call);

/// Throws for a name that is none.
ActivationCall activation_of(const EpilogueCall& call);

/// Throws as parse_policy.
PolicyRequest policy_of(const EpilogueCall& call);

/// A call's implementation, for one of the dispatcher's keys.
using EpilogueImpl = at::Tensor(const EpilogueCall&);

template <EpilogueImpl* kImpl>
at::Tensor epilogue_kernel(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& other, c10::SymIntArrayRef stride,
                           c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                           c10::SymInt groups, std::string_view activation, double alpha,
                           double negative_slope, std::optional<std::string_view> policy) {
  return kImpl({input, weight, bias, other, stride, padding, dilation, groups, activation, alpha,
                negative_slope, policy});
}

}  // namespace convtime::ops
