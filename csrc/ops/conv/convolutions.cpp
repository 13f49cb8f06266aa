#include "ops/conv/convolutions.h"

#include <ATen/core/DimVector.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "ops/conv/backward_call.h"
#include "ops/dispatch.h"

namespace convtime::ops {
namespace {

using at::native::ConvBackend;

/// The terms used in error messages, by the number of spatial dimensions minus one.
struct Names {
  const char* numbers;
  const char* batched;
  const char* unbatched;
  const char* kernel;
  const char* smallest_kernel;
  std::array<const char*, 3> spatial;
};

constexpr std::array<Names, 3> kNames = {
    {{"one number", "(N, C, L)", "(C, L)", "S", "1", {"length", "", ""}},
     {"one or two numbers", "(N, C, H, W)", "(C, H, W)", "R, S", "1 x 1", {"height", "width", ""}},
     {"one or three numbers",
      "(N, C, D, H, W)",
      "(C, D, H, W)",
      "T, R, S",
      "1 x 1 x 1",
      {"depth", "height", "width"}}}};

const Names& names_of(const ConvOp& op) { return kNames[op.spatial - 1]; }

/// Expand "[2, 3]" or "[2]" to one value per spatial dimension, each in [minimum, INT_MAX]: cuDNN
/// and PyTorch's own keys store them in 32 bits.
ConvParams::Numbers expand(const ConvOp& op, c10::SymIntArrayRef symbolic, const char* name,
                           std::int64_t minimum) {
  const at::IntArrayRef values = C10_AS_INTARRAYREF_SLOW(symbolic);
  TORCH_CHECK(values.size() == 1 || values.size() == op.spatial, op.name, ": ", name, " must be ",
              names_of(op).numbers, ", got ", values);
  for (const std::int64_t value : values) {
    TORCH_CHECK(value >= minimum && value <= std::numeric_limits<std::int32_t>::max(), op.name,
                ": ", name, " must be between ", minimum, " and 2147483647, got ", values);
  }
  return values.size() == op.spatial ? ConvParams::Numbers(values.begin(), values.end())
                                     : ConvParams::Numbers(op.spatial, values.front());
}

ConvParams read_params(const ConvOp& op, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                       c10::SymIntArrayRef output_padding, c10::SymIntArrayRef dilation,
                       const c10::SymInt& groups) {
  ConvParams params{.stride = expand(op, stride, "stride", 1),
                    .padding = expand(op, padding, "padding", 0),
                    .dilation = expand(op, dilation, "dilation", 1),
                    .output_padding = ConvParams::Numbers(op.spatial, 0),
                    .groups = groups.expect_int(),
                    .transposed = op.transposed};
  if (op.transposed) {
    params.output_padding = expand(op, output_padding, "output_padding", 0);
  }
  return params;
}

/// Check the requirements on input and weight that forward and backward share.
void check_operands(const ConvOp& op, const at::Tensor& input, const at::Tensor& weight,
                    const c10::SymInt& symbolic_groups) {
  const auto spatial = static_cast<std::int64_t>(op.spatial);
  const std::int64_t groups = symbolic_groups.expect_int();
  TORCH_CHECK(weight.dim() == spatial + 2, op.name, ": weight must have shape ",
              op.transposed ? "(C, K / groups, " : "(K, C / groups, ", names_of(op).kernel,
              "), got ", weight.sizes());
  TORCH_CHECK(groups >= 1, op.name, ": groups must be at least 1, got ", groups);
  const std::int64_t channels = input.size(-spatial - 1);
  const bool has_kernel = std::all_of(weight.sizes().begin() + 2, weight.sizes().end(),
                                      [](std::int64_t size) { return size >= 1; });
  const std::int64_t outputs = weight.size(op.transposed ? 1 : 0);
  TORCH_CHECK(outputs >= 1 && has_kernel, op.name,
              ": weight must have at least one output channel and a kernel of at least ",
              names_of(op).smallest_kernel, ", got shape ", weight.sizes());
  TORCH_CHECK(weight.size(0) % groups == 0, op.name, ": the ", op.transposed ? "input" : "output",
              " channels (dimension 0 of weight) must be a multiple of groups (", groups, "), got ",
              weight.size(0));
  if (op.transposed) {
    TORCH_CHECK(weight.size(0) >= 1, op.name,
                ": weight must have at least one input channel, got shape ", weight.sizes());
    TORCH_CHECK(weight.size(0) == channels, op.name,
                ": input must have as many channels as dimension 0 of weight (", weight.size(0),
                "), got ", channels);
  } else {
    TORCH_CHECK(weight.size(1) * groups == channels, op.name,
                ": input must have dimension 1 of weight times groups channels (", weight.size(1),
                " * ", groups, "), got ", channels);
  }
  check_alike(op, "weight", weight, input);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(input.scalar_type()) && input.element_size() >= 2,
                              op.name, ": the dtype must be Half, BFloat16, Float or Double, got ",
                              input.scalar_type());
}

std::int64_t output_channels(const at::Tensor& weight, const ConvParams& params) {
  return params.transposed ? weight.size(1) * params.groups : weight.size(0);
}

void check_bias(const ConvOp& op, const at::Tensor& bias, std::int64_t channels,
                const at::Tensor& input) {
  TORCH_CHECK(bias.dim() == 1 && bias.size(0) == channels, op.name, ": bias must have shape (",
              channels, "), one value per output channel, got ", bias.sizes());
  check_alike(op, "bias", bias, input);
}

/// Return the output's size in one spatial dimension; throws if the arguments leave no output.
std::int64_t output_length(const ConvOp& op, std::size_t i, std::int64_t input, std::int64_t weight,
                           const ConvParams& params) {
  const std::int64_t kernel = params.dilation[i] * (weight - 1) + 1;
  const char* const where = names_of(op).spatial[i];
  if (!op.transposed) {
    const std::int64_t padded = input + 2 * params.padding[i];
    TORCH_CHECK(kernel <= padded, op.name,
                ": the kernel must not be larger than the padded input, got a dilated kernel of ",
                kernel, " and a padded input of ", padded, " in ", where);
    return (padded - kernel) / params.stride[i] + 1;
  }
  const std::int64_t length =
      (input - 1) * params.stride[i] - 2 * params.padding[i] + kernel + params.output_padding[i];
  TORCH_CHECK(length >= 0, op.name,
              ": padding on both sides must be at most the output without padding, got ",
              params.padding[i], " for an output of ", length + 2 * params.padding[i], " in ",
              where);
  return length;
}

/// Return the output's size for a batched input. Throws for outputs that are empty because the
/// kernel does not fit, and for outputs that cannot exist.
at::DimVector checked_output_size(const ConvOp& op, const at::Tensor& input,
                                  const at::Tensor& weight, const ConvParams& params) {
  at::DimVector size = {input.size(0), output_channels(weight, params)};
  for (std::size_t i = 0; i < op.spatial; ++i) {
    const auto dim = static_cast<std::int64_t>(i) + 2;
    size.push_back(output_length(op, i, input.size(dim), weight.size(dim), params));
  }
  // A host that overcommits memory would only fail when the output is written, and kill the
  // process.
  if (input.is_cpu()) {
    double bytes = static_cast<double>(input.element_size());
    for (const std::int64_t length : size) {
      bytes *= static_cast<double>(length);
    }
    static const double host_bytes =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    TORCH_CHECK(bytes <= host_bytes, op.name, ": the output would take ", bytes,
                " bytes and this machine has ", host_bytes,
                "; check padding, stride and the input's size");
  }
  if (input.size(1) == 0) {
    size[1] = 0;  // as in PyTorch's forward
  }
  return size;
}

bool is_empty(at::IntArrayRef size) { return std::find(size.begin(), size.end(), 0) != size.end(); }

/// Refuse output padding for which PyTorch's kernels compute a wrong size. PyTorch does not check
/// it if there is nothing to compute.
void check_output_padding(const ConvOp& op, const ConvParams& params) {
  for (std::size_t i = 0; i < op.spatial; ++i) {
    const std::int64_t limit = std::max(params.stride[i], params.dilation[i]);
    TORCH_CHECK(params.output_padding[i] < limit, op.name,
                ": output_padding must be smaller than stride or dilation (", limit, "), got ",
                params.output_padding[i], " in ", names_of(op).spatial[i]);
  }
}

/// Return a tensor with two spatial dimensions: like PyTorch, one dimension is computed as two. The
/// tensor has a batch.
at::Tensor add_height(const at::Tensor& tensor) { return tensor.unsqueeze(2); }

ConvParams add_height(ConvParams params) {
  params.stride.insert(params.stride.begin(), 1);
  params.padding.insert(params.padding.begin(), 0);
  params.dilation.insert(params.dilation.begin(), 1);
  params.output_padding.insert(params.output_padding.begin(), 0);
  return params;
}

/// Return the backend that PyTorch selects; `input` is batched and has two or more spatial
/// dimensions.
ConvBackend select_backend(const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const ConvParams& params) {
  return at::native::select_conv_backend(
      input, weight, bias, c10::fromIntArrayRefSlow(params.stride),
      c10::fromIntArrayRefSlow(params.padding), c10::fromIntArrayRefSlow(params.dilation),
      params.transposed, c10::fromIntArrayRefSlow(params.output_padding), params.groups,
      /*bias_sizes_opt=*/std::nullopt);
}

#ifdef CONVTIME_WITH_CUDA
/// Return whether the call uses our own plans. With TORCH_CUDNN_V8_API_DISABLED, PyTorch calls a
/// cuDNN API that has no plans.
bool has_plans(ConvBackend backend) {
  return (backend == ConvBackend::Cudnn || backend == ConvBackend::CudnnTranspose) &&
         at::native::cudnnv8_enabled_check_debug();
}

/// Return whether a stored plan of cuDNN may take the place of PyTorch's own kernels.
bool may_be_stored(ConvBackend backend, const PolicyRequest& policy) {
  return (backend == ConvBackend::CudaDepthwise2d || backend == ConvBackend::CudaDepthwise3d) &&
         policy.is_empty() && at::globalContext().userEnabledCuDNN() && cudnn_has_stored_plans();
}
#endif

/// Refuse an engine if there is no choice of engines.
void check_no_engine(const ConvOp& op, const PolicyRequest& policy, const at::Tensor& input) {
  TORCH_CHECK(!policy.engine.has_value(), op.name, ": policy names cuDNN's engine ",
              policy.engine->engine.index, ", but PyTorch computes this convolution on ",
              input.device(), " without cuDNN's plans; leave policy out");
}

at::Tensor convolution(const ConvCall& call) {
  const PolicyRequest policy =
      parse_policy(call.op.name, call.policy, {forward_pass(call.op.transposed)});
  const PreparedConv conv = prepare(call);
  return conv.as_caller_has_it(compute(conv, call.bias, policy));
}

Gradients pytorchs_gradients(const at::Tensor& grad_output, const at::Tensor& x,
                             const at::Tensor& weight, const ConvParams& params,
                             std::array<bool, 3> output_mask) {
  const std::int64_t channels = output_channels(weight, params);
  return at::convolution_backward(grad_output, x, weight, /*bias_sizes_opt=*/{channels},
                                  params.stride, params.padding, params.dilation, params.transposed,
                                  params.output_padding, params.groups, output_mask);
}

/// The gradients of `compute`.
Gradients compute_gradients(const ConvOp& op, const at::Tensor& grad_output, const at::Tensor& x,
                            const at::Tensor& weight, const ConvParams& params,
                            std::array<bool, 3> output_mask, const PolicyRequest& policy,
                            [[maybe_unused]] bool has_output) {
#ifdef CONVTIME_WITH_CUDA
  const ConvBackend backend =
      has_output ? select_backend(x, weight, std::nullopt, params) : ConvBackend::Empty;
  if (has_plans(backend)) {
    auto [grad_input, grad_weight] = cudnn_backward(op.name, grad_output, x, weight, params,
                                                    {output_mask[0], output_mask[1]}, policy);
    return {grad_input, grad_weight, output_mask[2] ? grad_bias_of(grad_output) : at::Tensor()};
  }
  if (may_be_stored(backend, policy)) {
    const auto [grad_input, grad_weight] = cudnn_stored_backward(
        op.name, grad_output, x, weight, params, {output_mask[0], output_mask[1]});
    output_mask[0] = output_mask[0] && !grad_input.defined();
    output_mask[1] = output_mask[1] && !grad_weight.defined();
    const Gradients others = output_mask == std::array<bool, 3>{}
                                 ? Gradients()
                                 : pytorchs_gradients(grad_output, x, weight, params, output_mask);
    return {grad_input.defined() ? grad_input : std::get<0>(others),
            grad_weight.defined() ? grad_weight : std::get<1>(others), std::get<2>(others)};
  }
#endif
  check_no_engine(op, policy, x);
  return pytorchs_gradients(grad_output, x, weight, params, output_mask);
}

Gradients convolution_backward(const ConvBackwardCall& call) {
  constexpr const char* kName = "convolution_backward";
  const auto& [grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
               groups, output_mask, policy_text] = call;
  TORCH_CHECK(input.dim() >= 3 && input.dim() <= 5, kName,
              ": input must have a batch, channels and one to three spatial dimensions, got shape ",
              input.sizes());
  const ConvOp op{kName, static_cast<std::size_t>(input.dim() - 2), transposed};
  check_operands(op, input, weight, groups);
  check_alike(op, "grad_output", grad_output, input);
  const ConvParams params = read_params(op, stride, padding, output_padding, dilation, groups);
  const at::DimVector output_size = checked_output_size(op, input, weight, params);
  const bool has_output = !is_empty(output_size);
  if (transposed && has_output) {
    check_output_padding(op, params);
  }
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(output_size), kName,
              ": grad_output must have the output's shape ", at::IntArrayRef(output_size), ", got ",
              grad_output.sizes());
  c10::SmallVector<conv::Pass, 2> passes;
  if (output_mask[0]) {
    passes.push_back(input_gradient_pass(transposed));
  }
  if (output_mask[1]) {
    passes.push_back(conv::Pass::kWgrad);
  }
  const PolicyRequest policy = parse_policy(kName, policy_text, passes);

  if (op.spatial > 1) {
    return compute_gradients(op, grad_output, input, weight, params, output_mask, policy,
                             has_output);
  }
  auto [grad_input, grad_weight, grad_bias] =
      compute_gradients(op, add_height(grad_output), add_height(input.contiguous()),
                        add_height(weight), add_height(params), output_mask, policy, has_output);
  return {output_mask[0] ? grad_input.squeeze(2) : grad_input,
          output_mask[1] ? grad_weight.squeeze(2) : grad_weight, grad_bias};
}

at::Tensor refuse_layout(const ConvCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, call.op.name, ": input, weight and bias must have the layout torch.strided, got ",
      call.input.layout(), " and ", call.weight.layout(), "; call to_dense() before");
}

template <typename Signature>
std::array<c10::TypedOperatorHandle<Signature>, 3> find_ops(const std::array<ConvOp, 3>& ops) {
  return {find_op<Signature>(ops[0].name), find_op<Signature>(ops[1].name),
          find_op<Signature>(ops[2].name)};
}

}  // namespace

void check_alike(const ConvOp& op, const char* name, const at::Tensor& tensor,
                 const at::Tensor& input) {
  TORCH_CHECK(tensor.scalar_type() == input.scalar_type(), op.name, ": ", name,
              " must have the input's dtype (", input.scalar_type(), "), got ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.device() == input.device(), op.name, ": ", name,
              " must be on the input's device (", input.device(), "), got ", tensor.device());
}

bool PreparedConv::has_output() const { return !is_empty(output_size); }

bool PreparedConv::has_plans([[maybe_unused]] const std::optional<at::Tensor>& bias) const {
#ifdef CONVTIME_WITH_CUDA
  return has_output() && ops::has_plans(select_backend(input, weight, bias, params));
#else
  return false;
#endif
}

at::IntArrayRef PreparedConv::callers_output_size() const {
  const at::IntArrayRef size = output_size;
  return batched ? size : size.slice(1);
}

at::Tensor PreparedConv::as_output(const at::Tensor& tensor) const {
  const at::Tensor with_batch = batched ? tensor : tensor.unsqueeze(0);
  return op.spatial == 1 ? add_height(with_batch) : with_batch;
}

at::Tensor PreparedConv::as_caller_has_it(const at::Tensor& y) const {
  const at::Tensor with_batch = op.spatial == 1 ? y.squeeze(2) : y;
  return batched ? with_batch : with_batch.squeeze(0);
}

PreparedConv prepare(const ConvCall& call) {
  const ConvOp& op = call.op;
  const auto spatial = static_cast<std::int64_t>(op.spatial);
  TORCH_CHECK(call.input.dim() == spatial + 1 || call.input.dim() == spatial + 2, op.name,
              ": input must have shape ", names_of(op).batched, " or ", names_of(op).unbatched,
              ", got ", call.input.sizes());
  check_operands(op, call.input, call.weight, call.groups);
  ConvParams params =
      read_params(op, call.stride, call.padding, call.output_padding, call.dilation, call.groups);
  if (is_defined(call.bias)) {
    check_bias(op, *call.bias, output_channels(call.weight, params), call.input);
  }
  const bool batched = call.input.dim() == spatial + 2;
  const at::Tensor x = batched ? call.input : call.input.unsqueeze(0);
  const at::DimVector output_size = checked_output_size(op, x, call.weight, params);
  if (op.transposed && !is_empty(output_size)) {
    check_output_padding(op, params);
  }
  if (op.spatial == 1) {
    return {op,
            add_height(x.contiguous()),
            add_height(call.weight),
            add_height(params),
            output_size,
            batched};
  }
  return {op, x, call.weight, std::move(params), output_size, batched};
}

at::Tensor compute(const PreparedConv& conv, const std::optional<at::Tensor>& bias,
                   const PolicyRequest& policy) {
  const auto& [op, x, weight, params, output_size, batched] = conv;
  // Without an output, no plan can be selected; PyTorch computes or refuses the call.
  if (conv.has_output()) {
    const ConvBackend backend = select_backend(x, weight, bias, params);
#ifdef CONVTIME_WITH_CUDA
    at::Tensor y;
    if (ops::has_plans(backend)) {
      y = cudnn_forward(op.name, x, weight, params, policy);
    } else if (may_be_stored(backend, policy)) {
      y = cudnn_stored_forward(op.name, x, weight, params);
    }
    if (y.defined()) {
      if (is_defined(bias)) {
        cuda_add_bias(y, *bias);
      }
      return y;
    }
#endif
    if (backend == ConvBackend::Mkldnn) {
      check_no_engine(op, policy, x);
      const auto format = at::native::_determine_backend_memory_format(x, weight, backend);
      return at::mkldnn_convolution(
          x.contiguous(format), weight.contiguous(format),
          is_defined(bias) ? std::optional(bias->contiguous()) : std::nullopt, params.padding,
          params.stride, params.dilation, params.groups);
    }
  }
  check_no_engine(op, policy, x);
  // PyTorch's own kernels (depthwise, slow paths, empty batches): run the same kernels as PyTorch.
  return at::convolution(x, weight, bias, params.stride, params.padding, params.dilation,
                         params.transposed, params.output_padding, params.groups);
}

at::Tensor dispatch(const ConvCall& call) {
  if (call.op.transposed) {
    static const auto ops = find_ops<ConvTransposeSignature>(kConvTranspose);
    return ops[call.op.spatial - 1].call(call.input, call.weight, call.bias, call.stride,
                                         call.padding, call.output_padding, call.groups,
                                         call.dilation, call.policy);
  }
  static const auto ops = find_ops<ConvSignature>(kConv);
  return ops[call.op.spatial - 1].call(call.input, call.weight, call.bias, call.stride,
                                       call.padding, call.dilation, call.groups, call.policy);
}

TORCH_LIBRARY_IMPL(convtime, CPU, library) {
  implement<convolution>(library);
  library.impl("convolution_backward", kernel<convolution_backward>);
}
TORCH_LIBRARY_IMPL(convtime, MkldnnCPU, library) { implement<refuse_layout>(library); }
TORCH_LIBRARY_IMPL(convtime, SparseCPU, library) { implement<refuse_layout>(library); }
#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) {
  implement<convolution>(library);
  library.impl("convolution_backward", kernel<convolution_backward>);
}
TORCH_LIBRARY_IMPL(convtime, SparseCUDA, library) { implement<refuse_layout>(library); }
#endif

}  // namespace convtime::ops
