#include "ops/conv2d.h"

#include <ATen/TensorUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <torch/library.h>
#include <unistd.h>

#include <limits>
#include <optional>

namespace convtime::ops {
namespace {

/// "[2, 3]" or "[2]" to two numbers, each in [minimum, INT_MAX]: cuDNN and PyTorch's own keys hold
/// them in 32 bits.
std::array<std::int64_t, 2> expand(at::IntArrayRef values, const char* name, std::int64_t minimum) {
  TORCH_CHECK(values.size() == 1 || values.size() == 2, "conv2d: ", name,
              " must be one or two numbers, got ", values);
  for (const std::int64_t value : values) {
    TORCH_CHECK(value >= minimum && value <= std::numeric_limits<std::int32_t>::max(),
                "conv2d: ", name, " must lie between ", minimum, " and 2147483647, got ", values);
  }
  return {values[0], values.size() == 2 ? values[1] : values[0]};
}

void check_tensors(const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, std::int64_t groups) {
  TORCH_CHECK(input.dim() == 3 || input.dim() == 4,
              "conv2d: input must have shape (N, C, H, W) or (C, H, W), got ", input.sizes());
  TORCH_CHECK(weight.dim() == 4, "conv2d: weight must have shape (K, C / groups, R, S), got ",
              weight.sizes());
  TORCH_CHECK(groups >= 1, "conv2d: groups must be at least 1, got ", groups);
  const std::int64_t channels = input.size(-3);
  TORCH_CHECK(
      weight.size(0) >= 1 && weight.size(2) >= 1 && weight.size(3) >= 1,
      "conv2d: weight must have at least one output channel and a kernel of at least 1 x 1, "
      "got shape ",
      weight.sizes());
  TORCH_CHECK(weight.size(0) % groups == 0,
              "conv2d: the output channels (dimension 0 of weight) must be a multiple of groups (",
              groups, "), got ", weight.size(0));
  TORCH_CHECK(weight.size(1) * groups == channels,
              "conv2d: input must have dimension 1 of weight times groups channels (",
              weight.size(1), " * ", groups, "), got ", channels);
  TORCH_CHECK(c10::isFloatingType(input.scalar_type()) && input.element_size() >= 2,
              "conv2d: the dtype must be one of Half, BFloat16, Float, Double, got ",
              input.scalar_type());
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(),
              "conv2d: input and weight must have the same dtype, got ", input.scalar_type(),
              " and ", weight.scalar_type());
  TORCH_CHECK(input.device() == weight.device(),
              "conv2d: input and weight must be on the same device, got ", input.device(), " and ",
              weight.device());
  if (bias.has_value() && bias->defined()) {
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0),
                "conv2d: bias must have shape (", weight.size(0),
                "), one number for each output "
                "channel, got ",
                bias->sizes());
    TORCH_CHECK(bias->scalar_type() == input.scalar_type(),
                "conv2d: bias must have the input's dtype (", input.scalar_type(), "), got ",
                bias->scalar_type());
    TORCH_CHECK(bias->device() == input.device(), "conv2d: bias must be on the input's device (",
                input.device(), "), got ", bias->device());
  }
}

/// Refuses outputs that are empty because the kernel does not fit, and those that cannot exist.
void check_output(const at::Tensor& input, const at::Tensor& weight, const Conv2dParams& params) {
  double bytes = static_cast<double>(input.dim() == 4 ? input.size(0) : 1) *
                 static_cast<double>(weight.size(0)) * static_cast<double>(input.element_size());
  for (std::size_t i = 0; i < 2; ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    const std::int64_t padded = input.size(dim - 2) + 2 * params.padding[i];
    const std::int64_t kernel = params.dilation[i] * (weight.size(dim + 2) - 1) + 1;
    TORCH_CHECK(kernel <= padded,
                "conv2d: the kernel must not be larger than the padded input, got ", kernel,
                " (dilated) against ", padded, " in ", i == 0 ? "height" : "width");
    bytes *= static_cast<double>((padded - kernel) / params.stride[i] + 1);
  }
  // A host that overcommits memory would only find out when the output is written, and kill us.
  if (input.is_cpu()) {
    static const double host_bytes =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    TORCH_CHECK(bytes <= host_bytes, "conv2d: the output would take ", bytes,
                " bytes and this machine has ", host_bytes,
                "; check padding, stride and the input's size");
  }
}

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups) {
  check_tensors(input, weight, bias, groups);
  const Conv2dParams params{expand(stride, "stride", 1), expand(padding, "padding", 0),
                            expand(dilation, "dilation", 1), groups};
  check_output(input, weight, params);

  const bool batched = input.dim() == 4;
  const at::Tensor x = batched ? input : input.unsqueeze(0);
  using at::native::ConvBackend;
  const ConvBackend backend = at::native::select_conv_backend(
      x, weight, bias, c10::fromIntArrayRefSlow(params.stride),
      c10::fromIntArrayRefSlow(params.padding), c10::fromIntArrayRefSlow(params.dilation),
      /*transposed=*/false, /*output_padding=*/{c10::SymInt(0), c10::SymInt(0)}, groups,
      /*bias_sizes_opt=*/std::nullopt);

  at::Tensor y;
#ifdef CONVTIME_WITH_CUDA
  if (backend == ConvBackend::Cudnn) {
    y = conv2d_cudnn(x, weight, params);
    if (bias.has_value() && bias->defined()) {
      y.add_(bias->reshape({1, -1, 1, 1}));
    }
  } else
#endif
      if (backend == ConvBackend::Mkldnn) {
    const auto format = at::native::_determine_backend_memory_format(x, weight, backend);
    y = at::mkldnn_convolution(
        x.contiguous(format), weight.contiguous(format),
        bias.has_value() && bias->defined() ? std::optional(bias->contiguous()) : std::nullopt,
        params.padding, params.stride, params.dilation, groups);
  } else {
    // PyTorch's own kernels (depthwise, slow paths, empty batches): run what PyTorch runs.
    y = at::convolution(x, weight, bias, params.stride, params.padding, params.dilation,
                        /*transposed=*/false, /*output_padding=*/{0, 0}, groups);
  }
  return batched ? y : y.squeeze(0);
}

}  // namespace

const c10::TypedOperatorHandle<Conv2dSignature>& conv2d_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("convtime::conv2d", "")
                             .typed<Conv2dSignature>();
  return op;
}

TORCH_LIBRARY_IMPL(convtime, CPU, library) { library.impl("conv2d", conv2d); }
#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) { library.impl("conv2d", conv2d); }
#endif

}  // namespace convtime::ops
