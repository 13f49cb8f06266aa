#include "ops/conv/backward_call.h"

#include <cstdint>
#include <vector>

#include "ops/conv/policy_request.h"
#include "ops/dispatch.h"

namespace convtime::ops {
namespace {

/// Return the call's policy restricted to one pass: an engine for another pass is dropped.
std::optional<std::string_view> policy_for(conv::Pass pass, const ConvBackwardCall& call) {
  const PolicyRequest request =
      parse_policy("convolution_backward", call.policy,
                   {input_gradient_pass(call.transposed), conv::Pass::kWgrad});
  const bool is_for_another = request.engine.has_value() && request.engine->pass.has_value() &&
                              *request.engine->pass != pass;
  return is_for_another ? std::nullopt : call.policy;
}

/// Compute one of the gradients, by that pass, for a call with other tensors.
Gradients one_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                 const at::Tensor& input, const at::Tensor& weight, std::array<bool, 3> output_mask,
                 conv::Pass pass) {
  return dispatch({grad_output, input, weight, call.stride, call.padding, call.dilation,
                   call.transposed, call.output_padding, call.groups, output_mask,
                   policy_for(pass, call)});
}

}  // namespace

Gradients dispatch(const ConvBackwardCall& call) {
  static const auto op = find_op<ConvBackwardCall::Signature>("convolution_backward");
  return op.call(call.grad_output, call.input, call.weight, call.stride, call.padding,
                 call.dilation, call.transposed, call.output_padding, call.groups, call.output_mask,
                 call.policy);
}

Gradients gradients_of(const at::Tensor& grad_output, const at::Tensor& input,
                       const at::Tensor& weight, const ConvSettings& settings,
                       std::array<bool, 3> output_mask) {
  const bool batched = input.dim() == weight.dim();
  Gradients gradients =
      dispatch(backward_call(batched ? grad_output : grad_output.unsqueeze(0),
                             batched ? input : input.unsqueeze(0), weight, settings, output_mask));
  at::Tensor& grad_input = std::get<0>(gradients);
  if (!batched && grad_input.defined()) {
    grad_input = grad_input.squeeze(0);
  }
  return gradients;
}

at::Tensor grad_input_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                         const at::Tensor& input, const at::Tensor& weight) {
  return std::get<0>(one_of(call, grad_output, input, weight, {true, false, false},
                            input_gradient_pass(call.transposed)));
}

at::Tensor grad_weight_of(const ConvBackwardCall& call, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight) {
  return std::get<1>(
      one_of(call, grad_output, input, weight, {false, true, false}, conv::Pass::kWgrad));
}

at::Tensor grad_bias_of(const at::Tensor& grad_output) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t dim = 2; dim < grad_output.dim(); ++dim) {
    dims.push_back(dim);
  }
  return grad_output.sum(dims);
}

}  // namespace convtime::ops
