#include "ops/conv2d.h"

#include <ATen/TensorUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <torch/library.h>
#include <unistd.h>

#include <limits>
#include <vector>

namespace convtime::ops {
namespace {

using at::native::ConvBackend;

/// "[2, 3]" or "[2]" to two numbers, each in [minimum, INT_MAX]: cuDNN and PyTorch's own keys hold
/// them in 32 bits.
ConvParams::Numbers expand(const char* op, at::IntArrayRef values, const char* name,
                           std::int64_t minimum) {
  TORCH_CHECK(values.size() == 1 || values.size() == 2, op, ": ", name,
              " must be one or two numbers, got ", values);
  for (const std::int64_t value : values) {
    TORCH_CHECK(value >= minimum && value <= std::numeric_limits<std::int32_t>::max(), op, ": ",
                name, " must lie between ", minimum, " and 2147483647, got ", values);
  }
  return {values.front(), values.back()};
}

ConvParams read_params(const char* op, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, std::int64_t groups) {
  return {expand(op, stride, "stride", 1), expand(op, padding, "padding", 0),
          expand(op, dilation, "dilation", 1), groups};
}

/// What forward and backward ask of input and weight alike; `input` has a batch.
void check_operands(const char* op, const at::Tensor& input, const at::Tensor& weight,
                    std::int64_t groups) {
  TORCH_CHECK(weight.dim() == 4, op, ": weight must have shape (K, C / groups, R, S), got ",
              weight.sizes());
  TORCH_CHECK(groups >= 1, op, ": groups must be at least 1, got ", groups);
  const std::int64_t channels = input.size(-3);
  TORCH_CHECK(
      weight.size(0) >= 1 && weight.size(2) >= 1 && weight.size(3) >= 1, op,
      ": weight must have at least one output channel and a kernel of at least 1 x 1, got shape ",
      weight.sizes());
  TORCH_CHECK(weight.size(0) % groups == 0, op,
              ": the output channels (dimension 0 of weight) must be a multiple of groups (",
              groups, "), got ", weight.size(0));
  TORCH_CHECK(weight.size(1) * groups == channels, op,
              ": input must have dimension 1 of weight times groups channels (", weight.size(1),
              " * ", groups, "), got ", channels);
  TORCH_CHECK(c10::isFloatingType(input.scalar_type()) && input.element_size() >= 2, op,
              ": the dtype must be one of Half, BFloat16, Float, Double, got ",
              input.scalar_type());
}

void check_alike(const char* op, const char* name, const at::Tensor& tensor,
                 const at::Tensor& input) {
  TORCH_CHECK(input.scalar_type() == tensor.scalar_type(), op, ": input and ", name,
              " must have the same dtype, got ", input.scalar_type(), " and ",
              tensor.scalar_type());
  TORCH_CHECK(input.device() == tensor.device(), op, ": input and ", name,
              " must be on the same device, got ", input.device(), " and ", tensor.device());
}

void check_bias(const at::Tensor& bias, const at::Tensor& weight, const at::Tensor& input) {
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0), "conv2d: bias must have shape (",
              weight.size(0), "), one number for each output channel, got ", bias.sizes());
  TORCH_CHECK(bias.scalar_type() == input.scalar_type(),
              "conv2d: bias must have the input's dtype (", input.scalar_type(), "), got ",
              bias.scalar_type());
  TORCH_CHECK(bias.device() == input.device(), "conv2d: bias must be on the input's device (",
              input.device(), "), got ", bias.device());
}

/// Refuses outputs that are empty because the kernel does not fit, and those that cannot exist.
void check_output(const char* op, const at::Tensor& input, const at::Tensor& weight,
                  const ConvParams& params) {
  double bytes = static_cast<double>(input.dim() == 4 ? input.size(0) : 1) *
                 static_cast<double>(weight.size(0)) * static_cast<double>(input.element_size());
  for (std::size_t i = 0; i < 2; ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    const std::int64_t padded = input.size(dim - 2) + 2 * params.padding[i];
    const std::int64_t kernel = params.dilation[i] * (weight.size(dim + 2) - 1) + 1;
    TORCH_CHECK(kernel <= padded, op, ": the kernel must not be larger than the padded input, got ",
                kernel, " (dilated) against ", padded, " in ", i == 0 ? "height" : "width");
    bytes *= static_cast<double>((padded - kernel) / params.stride[i] + 1);
  }
  // A host that overcommits memory would only find out when the output is written, and kill us.
  if (input.is_cpu()) {
    static const double host_bytes =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    TORCH_CHECK(bytes <= host_bytes, op, ": the output would take ", bytes,
                " bytes and this machine has ", host_bytes,
                "; check padding, stride and the input's size");
  }
}

bool is_defined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

/// What PyTorch computes the convolution with; `input` has a batch.
ConvBackend select_backend(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const ConvParams& params) {
  return at::native::select_conv_backend(
      input, weight, bias, c10::fromIntArrayRefSlow(params.stride),
      c10::fromIntArrayRefSlow(params.padding), c10::fromIntArrayRefSlow(params.dilation),
      /*transposed=*/false, /*output_padding=*/{c10::SymInt(0), c10::SymInt(0)}, params.groups,
      /*bias_sizes_opt=*/std::nullopt);
}

#ifdef CONVTIME_WITH_CUDA
/// Whether the call is for our own plans. Under TORCH_CUDNN_V8_API_DISABLED, PyTorch calls cuDNN by
/// an interface that has no plans.
bool has_plans(ConvBackend backend) {
  return backend == ConvBackend::Cudnn && at::native::cudnnv8_enabled_check_debug();
}
#endif

/// Refuses an engine where there is no choice of engines.
void check_no_engine(const char* op, const PolicyRequest& policy, const at::Tensor& input) {
  TORCH_CHECK(!policy.engine.has_value(), op, ": policy names cuDNN's engine ",
              policy.engine->engine.index, ", but PyTorch computes this convolution on ",
              input.device(), " without cuDNN's plans; leave policy out");
}

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                  std::optional<std::string_view> policy_text) {
  constexpr const char* kOp = "conv2d";
  TORCH_CHECK(input.dim() == 3 || input.dim() == 4,
              "conv2d: input must have shape (N, C, H, W) or (C, H, W), got ", input.sizes());
  check_operands(kOp, input, weight, groups);
  check_alike(kOp, "weight", weight, input);
  if (is_defined(bias)) {
    check_bias(*bias, weight, input);
  }
  const ConvParams params = read_params(kOp, stride, padding, dilation, groups);
  check_output(kOp, input, weight, params);
  const PolicyRequest policy = parse_policy(kOp, policy_text, {conv::Pass::kFprop});

  const bool batched = input.dim() == 4;
  const at::Tensor x = batched ? input : input.unsqueeze(0);
  const ConvBackend backend = select_backend(x, weight, bias, params);
  at::Tensor y;
#ifdef CONVTIME_WITH_CUDA
  if (has_plans(backend)) {
    y = cudnn_fprop(x, weight, params, policy);
    if (is_defined(bias)) {
      y.add_(bias->reshape({1, -1, 1, 1}));
    }
    return batched ? y : y.squeeze(0);
  }
#endif
  check_no_engine(kOp, policy, input);
  if (backend == ConvBackend::Mkldnn) {
    const auto format = at::native::_determine_backend_memory_format(x, weight, backend);
    y = at::mkldnn_convolution(x.contiguous(format), weight.contiguous(format),
                               is_defined(bias) ? std::optional(bias->contiguous()) : std::nullopt,
                               params.padding, params.stride, params.dilation, groups);
  } else {
    // PyTorch's own kernels (depthwise, slow paths, empty batches): run what PyTorch runs.
    y = at::convolution(x, weight, bias, params.stride, params.padding, params.dilation,
                        /*transposed=*/false, /*output_padding=*/{0, 0}, groups);
  }
  return batched ? y : y.squeeze(0);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> conv2d_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
    std::array<bool, 3> output_mask, std::optional<std::string_view> policy_text) {
  constexpr const char* kOp = "conv2d_backward";
  TORCH_CHECK(input.dim() == 4, "conv2d_backward: input must have shape (N, C, H, W), got ",
              input.sizes());
  check_operands(kOp, input, weight, groups);
  check_alike(kOp, "weight", weight, input);
  check_alike(kOp, "grad_output", grad_output, input);
  const ConvParams params = read_params(kOp, stride, padding, dilation, groups);
  check_output(kOp, input, weight, params);
  std::vector<std::int64_t> output_size = at::native::conv_output_size(
      input.sizes(), weight.sizes(), params.padding, params.stride, params.dilation);
  if (input.size(1) == 0) {
    output_size[1] = 0;  // as PyTorch's forward has it
  }
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(output_size),
              "conv2d_backward: grad_output must have the output's shape ",
              at::IntArrayRef(output_size), ", got ", grad_output.sizes());
  c10::SmallVector<conv::Pass, 2> passes;
  if (output_mask[0]) {
    passes.push_back(conv::Pass::kDgrad);
  }
  if (output_mask[1]) {
    passes.push_back(conv::Pass::kWgrad);
  }
  const PolicyRequest policy = parse_policy(kOp, policy_text, passes);

#ifdef CONVTIME_WITH_CUDA
  if (has_plans(select_backend(input, weight, std::nullopt, params))) {
    auto [grad_input, grad_weight] = cudnn_backward(grad_output, input, weight, params,
                                                    {output_mask[0], output_mask[1]}, policy);
    return {grad_input, grad_weight,
            output_mask[2] ? grad_output.sum(at::IntArrayRef{0, 2, 3}) : at::Tensor()};
  }
#endif
  check_no_engine(kOp, policy, input);
  return at::convolution_backward(grad_output, input, weight,
                                  /*bias_sizes_opt=*/weight.sizes().slice(0, 1), params.stride,
                                  params.padding, params.dilation, /*transposed=*/false,
                                  /*output_padding=*/{0, 0}, groups, output_mask);
}

}  // namespace

const c10::TypedOperatorHandle<Conv2dSignature>& conv2d_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("convtime::conv2d", "")
                             .typed<Conv2dSignature>();
  return op;
}

const c10::TypedOperatorHandle<Conv2dBackwardSignature>& conv2d_backward_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("convtime::conv2d_backward", "")
                             .typed<Conv2dBackwardSignature>();
  return op;
}

TORCH_LIBRARY_IMPL(convtime, CPU, library) {
  library.impl("conv2d", conv2d);
  library.impl("conv2d_backward", conv2d_backward);
}
#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) {
  library.impl("conv2d", conv2d);
  library.impl("conv2d_backward", conv2d_backward);
}
#endif

}  // namespace convtime::ops
