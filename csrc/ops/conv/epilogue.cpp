#include "ops/conv/epilogue.h"

#include <torch/library.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace convtime::ops {
namespace {

void check_other(const ConvOp& op, const at::Tensor& other, const at::Tensor& input,
                 at::IntArrayRef output_size) {
  TORCH_CHECK(other.sizes() == output_size, op.name, ": other must have the output's shape ",
              output_size, ", got ", other.sizes());
  check_alike(op, "other", other, input);
}

at::Tensor convolution_epilogue(const EpilogueCall& call) {
  const ConvOp& op = op_of(call);
  const ActivationCall activation = activation_of(call);
  const PolicyRequest policy = policy_of(call);
  const PreparedConv conv =
      prepare({op, call.input, call.weight, call.bias, call.stride, call.padding,
               /*output_padding=*/{}, call.dilation, call.groups, /*policy=*/std::nullopt});
  std::optional<at::Tensor> other;
  if (is_defined(call.other)) {
    check_other(op, *call.other, call.input, conv.callers_output_size());
    other = conv.as_output(*call.other);
  }
#ifdef CONVTIME_WITH_CUDA
  const EpilogueOperands epilogue{call.bias, other, call.alpha, activation};
  if (conv.has_plans(call.bias)) {
    return conv.as_caller_has_it(
        cudnn_epilogue(op.name, conv.input, conv.weight, conv.params, epilogue, policy));
  }
  if (call.input.is_cuda()) {
    const at::Tensor y = compute(conv, /*bias=*/std::nullopt, policy);
    cuda_apply_epilogue(y, epilogue);
    return conv.as_caller_has_it(y);
  }
#endif
  at::Tensor y = compute(conv, call.bias, policy);
  if (other.has_value()) {
    y.add_(*other, call.alpha);
  }
  activate_(y, activation);
  return conv.as_caller_has_it(y);
}

}  // namespace

at::Tensor dispatch(const EpilogueCall& call) {
  static const auto op = find_op<EpilogueCall::Signature>("convolution_epilogue");
  return op.call(call.input, call.weight, call.bias, call.other, call.stride, call.padding,
                 call.dilation, call.groups, call.activation, call.alpha, call.negative_slope,
                 call.policy);
}

const ConvOp& op_of(const EpilogueCall& call) {
  const std::int64_t spatial = call.weight.dim() - 2;
  TORCH_CHECK(spatial >= 1 && spatial <= 3,
              "convolution_epilogue: weight must have one to three spatial dimensions after its "
              "channels, got shape ",
              call.weight.sizes());
  return kConvEpilogue[static_cast<std::size_t>(spatial - 1)];
}

ActivationCall activation_of(const EpilogueCall& call) {
  const std::optional<conv::Activation> activation = find_enum<conv::Activation>(call.activation);
  TORCH_CHECK(activation.has_value(), op_of(call).name, ": activation must be one of ",
              quoted_names<conv::Activation>(), ", got '", call.activation, "'");
  TORCH_CHECK(std::isfinite(call.alpha) && std::isfinite(call.negative_slope), op_of(call).name,
              ": alpha and negative_slope must be finite, got ", call.alpha, " and ",
              call.negative_slope);
  return {*activation, call.negative_slope};
}

PolicyRequest policy_of(const EpilogueCall& call) {
  const conv::Activation activation = activation_of(call).activation;
  // PyTorch's graph for a ReLU always has both sums.
  const bool all = activation == conv::Activation::kRelu;
  return parse_policy(
      op_of(call).name, call.policy, {conv::Pass::kFprop},
      conv::epilogue_name(all || is_defined(call.other), all || is_defined(call.bias), activation));
}

TORCH_LIBRARY_IMPL(convtime, CPU, library) {
  library.impl("convolution_epilogue", kernel<convolution_epilogue>);
}
#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) {
  library.impl("convolution_epilogue", kernel<convolution_epilogue>);
}
#endif

}  // namespace convtime::ops
