#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <string_view>

#include "core/export.h"
#include "ops/conv/activation.h"
#include "ops/conv/convolutions.h"
#include "ops/dispatch.h"

namespace convtime::ops {

/// One op, under the names of its Python functions.
inline constexpr std::array<ConvOp, 3> kConvEpilogue = {
    {{"conv1d_epilogue", 1, false}, {"conv2d_epilogue", 2, false}, {"conv3d_epilogue", 3, false}}};

/// The arguments of a convolution_epilogue call, as references.
struct EpilogueCall {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                               c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                               c10::SymInt, std::string_view, double, double,
                               std::optional<std::string_view>);

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

/// Call the op through the dispatcher.
CONVTIME_API at::Tensor dispatch(const EpilogueCall& call);

/// Return the op under its Python function's name, which error messages start with. Throws if the
/// weight has an unsupported rank.
const ConvOp& op_of(const EpilogueCall& call);

/// Return the call's activation; throws for an unknown name.
ActivationCall activation_of(const EpilogueCall& call);

/// Return the call's policy; throws like parse_policy().
PolicyRequest policy_of(const EpilogueCall& call);

}  // namespace convtime::ops
