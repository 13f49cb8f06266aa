#include <ATen/TensorOperators.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "ops/autograd_node.h"
#include "ops/dispatch.h"

#ifdef CONVTIME_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "ops/kernels/element_type.h"
#endif

namespace convtime::ops {
namespace {

constexpr const char* kName = "relu_max_pool2d";

/// The arguments that the ops of relu_max_pool2d share, as in their schemas.
struct PoolWindow {
  at::IntArrayRef kernel_size;
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
  bool ceil_mode;
};

/// The implementation of an op by a function that takes the window as one argument.
template <auto kFunction, typename... Others>
auto with_window(Others... others, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  return kFunction(others..., PoolWindow{kernel_size, stride, padding, dilation, ceil_mode});
}

/// One spatial dimension.
struct Axis {
  std::int64_t input;
  std::int64_t output;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
  std::int64_t dilation;
};

/// The checked geometry of a call.
struct Pooling {
  std::vector<std::int64_t> input_size;
  Axis h;
  Axis w;

  std::int64_t window() const { return h.kernel * w.kernel; }
  std::vector<std::int64_t> output_size() const {
    std::vector<std::int64_t> size = input_size;
    *(size.end() - 2) = h.output;
    *(size.end() - 1) = w.output;
    return size;
  }
};

/// Return an argument's values for height and width, each in [minimum, INT_MAX].
std::array<std::int64_t, 2> expand(at::IntArrayRef values, const char* name, std::int64_t minimum) {
  TORCH_CHECK(values.size() == 1 || values.size() == 2, kName, ": ", name,
              " must be one or two numbers, got ", values);
  for (const std::int64_t value : values) {
    TORCH_CHECK(minimum <= value && value <= std::numeric_limits<std::int32_t>::max(), kName, ": ",
                name, " must be between ", minimum, " and 2147483647, got ", values);
  }
  return {values.front(), values.back()};
}

Pooling check(at::IntArrayRef input_size, const PoolWindow& window) {
  const std::size_t dim = input_size.size();
  TORCH_CHECK(dim == 3 || dim == 4, kName,
              ": input must have shape (N, C, H, W) or (C, H, W), got ", input_size);
  for (std::size_t i = dim - 3; i < dim; ++i) {
    TORCH_CHECK(0 < input_size[i] && input_size[i] <= std::numeric_limits<std::int32_t>::max(),
                kName,
                ": channels, height and width of input must be between 1 and 2147483647, "
                "got shape ",
                input_size);
  }
  const auto kernel = expand(window.kernel_size, "kernel_size", 1);
  const auto stride = window.stride.empty() ? kernel : expand(window.stride, "stride", 1);
  const auto padding = expand(window.padding, "padding", 0);
  const auto dilation = expand(window.dilation, "dilation", 1);
  TORCH_CHECK(kernel[0] * kernel[1] <= std::numeric_limits<std::int32_t>::max(), kName,
              ": kernel_size must cover at most 2147483647 elements, got ", window.kernel_size);
  std::array<Axis, 2> axes{};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t extent = dilation[i] * (kernel[i] - 1) + 1;
    TORCH_CHECK(padding[i] <= kernel[i] / 2, kName,
                ": padding must be at most half of kernel_size ", window.kernel_size, ", got ",
                window.padding);
    const std::int64_t size = input_size[dim - 2 + i];
    const std::int64_t output = at::native::pooling_output_shape_pad_lr<std::int64_t>(
        size, kernel[i], padding[i], padding[i], stride[i], dilation[i], window.ceil_mode);
    TORCH_CHECK(output >= 1, kName, ": input of shape ", input_size,
                " must be at least as large as a window over ", extent,
                " elements, less a padding of ", padding[i], " on both sides, in dimension ",
                dim - 2 + i);
    axes[i] = {size, output, kernel[i], stride[i], padding[i], dilation[i]};
  }
  return {input_size.vec(), axes[0], axes[1]};
}

/// As in PyTorch, 3-D tensors are never channels_last.
at::MemoryFormat format_of(const at::Tensor& tensor) {
  return tensor.dim() == 4 ? tensor.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

void check_dtype(const at::Tensor& input) {
  const at::ScalarType type = input.scalar_type();
  TORCH_CHECK(
      type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble,
      kName, ": dtype must be float16, bfloat16, float32 or float64, got ", type);
}

/// Return the dtype of the winners for a window, as in kernels/relu_max_pool2d/relu_max_pool2d.h.
at::ScalarType winner_type(std::int64_t window) { return window <= 128 ? at::kByte : at::kUInt32; }

/// Check the arguments of backward and indices; return the layout of the winners.
at::MemoryFormat check_winners(const at::Tensor& winners, const Pooling& pooling) {
  const std::vector<std::int64_t> size = pooling.output_size();
  TORCH_CHECK(winners.sizes() == size && winners.scalar_type() == winner_type(pooling.window()),
              kName, ": winners must have shape ", at::IntArrayRef(size), " and dtype ",
              winner_type(pooling.window()), ", got ", winners.sizes(), " and ",
              winners.scalar_type());
  return format_of(winners);
}

void check_gradient(const at::Tensor& grad_output, const at::Tensor& winners) {
  check_dtype(grad_output);
  TORCH_CHECK(grad_output.sizes() == winners.sizes(), kName,
              ": the output's gradient must have the output's shape ", winners.sizes(), ", got ",
              grad_output.sizes());
  TORCH_CHECK(grad_output.device() == winners.device(), kName,
              ": the output's gradient must be on the winners' device ", winners.device(), ", got ",
              grad_output.device());
}

// --- ATen's own kernels: on a CPU, and on a GPU for planes that have no kernel

namespace aten {

/// The highest bit of a winner.
std::int64_t dead_bit(const Pooling& pooling) {
  return pooling.window() <= 128 ? std::int64_t{1} << 7 : std::int64_t{1} << 31;
}

std::tuple<at::Tensor, at::Tensor> pool(const at::Tensor& input, const PoolWindow& window) {
  check_dtype(input);
  check(input.sizes(), window);
  return at::max_pool2d_with_indices(at::relu(input), window.kernel_size, window.stride,
                                     window.padding, window.dilation, window.ceil_mode);
}

/// Return the start of each window along an axis, as a column or a row that broadcasts.
at::Tensor starts(const Axis& axis, std::int64_t trailing, at::Device device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor first = at::arange(axis.output, options) * axis.stride - axis.padding;
  return trailing == 1 ? first.unsqueeze(1) : first;
}

at::Tensor forward(const at::Tensor& input, const PoolWindow& window) {
  return std::get<0>(pool(input, window));
}

std::tuple<at::Tensor, at::Tensor> with_winners(const at::Tensor& input, const PoolWindow& window) {
  const auto [output, indices] = pool(input, window);
  const Pooling pooling = check(input.sizes(), window);
  const at::Tensor row = indices.div(pooling.w.input, "floor");
  const at::Tensor column = indices - row * pooling.w.input;
  const at::Device device = input.device();
  const at::Tensor r = (row - starts(pooling.h, 1, device)).div(pooling.h.dilation, "floor");
  const at::Tensor c = (column - starts(pooling.w, 0, device)).div(pooling.w.dilation, "floor");
  // Clamped, because a window without elements has an index outside the input.
  const at::Tensor position = (r * pooling.w.kernel + c).clamp(0, pooling.window() - 1);
  const at::Tensor alive = output.gt(0).logical_or(output.isnan());
  const at::Tensor winners = at::where(alive, position, position + dead_bit(pooling));
  return {output, winners.to(winner_type(pooling.window()))};
}

at::Tensor indices(const at::Tensor& winners, at::IntArrayRef input_size,
                   const PoolWindow& window) {
  const Pooling pooling = check(input_size, window);
  check_winners(winners, pooling);
  const at::Tensor position = winners.to(at::kLong).bitwise_and(dead_bit(pooling) - 1);
  const at::Tensor r = position.div(pooling.w.kernel, "floor");
  const at::Tensor c = position - r * pooling.w.kernel;
  const at::Device device = winners.device();
  return (starts(pooling.h, 1, device) + r * pooling.h.dilation) * pooling.w.input +
         (starts(pooling.w, 0, device) + c * pooling.w.dilation);
}

at::Tensor backward(const at::Tensor& grad_output, const at::Tensor& winners,
                    at::IntArrayRef input_size, const PoolWindow& window) {
  const Pooling pooling = check(input_size, window);
  const at::MemoryFormat format = check_winners(winners, pooling);
  check_gradient(grad_output, winners);
  const at::Tensor alive = winners.to(at::kLong).lt(dead_bit(pooling));
  const at::Tensor positions = indices(winners, input_size, window);
  // ATen's kernel reads only sizes and layout of the input.
  const at::Tensor input = at::empty(input_size, grad_output.options(), format);
  return at::max_pool2d_with_indices_backward(at::where(alive, grad_output, 0).contiguous(format),
                                              input, window.kernel_size, window.stride,
                                              window.padding, window.dilation, window.ceil_mode,
                                              at::where(alive, positions, 0).contiguous(format));
}

}  // namespace aten

#ifdef CONVTIME_WITH_CUDA

namespace cuda {

static_assert(!winners_are_bytes(129) && winners_are_bytes(128), "must agree with winner_type()");

PoolAxis narrow(const Axis& axis) {
  return {axis.input,
          axis.output,
          static_cast<int>(axis.kernel),
          static_cast<int>(axis.stride),
          static_cast<int>(axis.padding),
          static_cast<int>(axis.dilation)};
}

PoolGeometry geometry_of(const Pooling& pooling, at::MemoryFormat format) {
  const auto& size = pooling.input_size;
  return {size.size() == 4 ? size[0] : 1, size[size.size() - 3], narrow(pooling.h),
          narrow(pooling.w), format == at::MemoryFormat::ChannelsLast};
}

// A plane's indices, or an image's if channels are last, may not fit in 32 bits. Then planes are
// separated, and where even one does not fit, ATen's kernels take its place.

/// Return the output, and the winners if they are requested.
std::tuple<at::Tensor, at::Tensor> pool(const at::Tensor& input, const PoolWindow& window,
                                        bool wants_winners, at::MemoryFormat format) {
  const Pooling pooling = check(input.sizes(), window);
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor dense = input.contiguous(format);
  const std::vector<std::int64_t> size = pooling.output_size();
  const at::Tensor output = at::empty(size, input.options(), format);
  at::Tensor winners;
  if (wants_winners) {
    winners = at::empty(size, input.options().dtype(winner_type(pooling.window())), format);
  }
  if (output.numel() == 0 ||
      launch_relu_max_pool2d(element_type_of(input), dense.const_data_ptr(),
                             output.mutable_data_ptr(),
                             wants_winners ? winners.mutable_data_ptr() : nullptr,
                             geometry_of(pooling, format), at::cuda::getCurrentCUDAStream())) {
    return {output, winners};
  }
  if (format == at::MemoryFormat::Contiguous) {
    return aten::with_winners(dense, window);
  }
  const auto planes = pool(dense, window, wants_winners, at::MemoryFormat::Contiguous);
  return {std::get<0>(planes).contiguous(format),
          wants_winners ? std::get<1>(planes).contiguous(format) : winners};
}

at::Tensor forward(const at::Tensor& input, const PoolWindow& window) {
  check_dtype(input);
  return std::get<0>(pool(input, window, /*wants_winners=*/false, format_of(input)));
}

std::tuple<at::Tensor, at::Tensor> with_winners(const at::Tensor& input, const PoolWindow& window) {
  check_dtype(input);
  return pool(input, window, /*wants_winners=*/true, format_of(input));
}

at::Tensor indices_in(at::MemoryFormat format, const at::Tensor& winners,
                      at::IntArrayRef input_size, const PoolWindow& window) {
  const Pooling pooling = check(input_size, window);
  const at::Tensor dense = winners.contiguous(format);
  const at::Tensor result = at::empty(winners.sizes(), winners.options().dtype(at::kLong), format);
  if (result.numel() == 0 || launch_relu_max_pool2d_indices(
                                 dense.const_data_ptr(), result.mutable_data_ptr<std::int64_t>(),
                                 geometry_of(pooling, format), at::cuda::getCurrentCUDAStream())) {
    return result;
  }
  if (format == at::MemoryFormat::Contiguous) {
    return aten::indices(dense, input_size, window);
  }
  return indices_in(at::MemoryFormat::Contiguous, dense, input_size, window).contiguous(format);
}

at::Tensor indices(const at::Tensor& winners, at::IntArrayRef input_size,
                   const PoolWindow& window) {
  const at::MemoryFormat format = check_winners(winners, check(input_size, window));
  const c10::cuda::CUDAGuard guard(winners.device());
  return indices_in(format, winners, input_size, window);
}

at::Tensor backward_in(at::MemoryFormat format, const at::Tensor& grad_output,
                       const at::Tensor& winners, at::IntArrayRef input_size,
                       const PoolWindow& window) {
  const at::Tensor gradient = grad_output.contiguous(format);
  const at::Tensor dense = winners.contiguous(format);
  const at::Tensor result = at::empty(input_size, grad_output.options(), format);
  if (result.numel() == 0 ||
      launch_relu_max_pool2d_backward(element_type_of(gradient), gradient.const_data_ptr(),
                                      dense.const_data_ptr(), result.mutable_data_ptr(),
                                      geometry_of(check(input_size, window), format),
                                      at::cuda::getCurrentCUDAStream())) {
    return result;
  }
  if (format == at::MemoryFormat::Contiguous) {
    return aten::backward(gradient, dense, input_size, window);
  }
  return backward_in(at::MemoryFormat::Contiguous, gradient, dense, input_size, window)
      .contiguous(format);
}

at::Tensor backward(const at::Tensor& grad_output, const at::Tensor& winners,
                    at::IntArrayRef input_size, const PoolWindow& window) {
  const at::MemoryFormat format = check_winners(winners, check(input_size, window));
  check_gradient(grad_output, winners);
  const c10::cuda::CUDAGuard guard(grad_output.device());
  return backward_in(format, grad_output, winners, input_size, window);
}

}  // namespace cuda

#endif

// --- Autograd

namespace pool_autograd {

/// An op, whose last arguments are those of a window.
template <typename Result, typename... Others>
class WindowOp {
 public:
  explicit WindowOp(const char* name) : handle_(find_op<Signature>(name)) {}

  Result operator()(Others... others, const PoolWindow& window) const {
    return handle_.call(others..., window.kernel_size, window.stride, window.padding,
                        window.dilation, window.ceil_mode);
  }

 private:
  using Signature = Result(Others..., at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, bool);
  c10::TypedOperatorHandle<Signature> handle_;
};

// The ops, called through the dispatcher.

at::Tensor relu_max_pool2d(const at::Tensor& input, const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&> op("relu_max_pool2d");
  return op(input, window);
}

std::tuple<at::Tensor, at::Tensor> relu_max_pool2d_with_winners(const at::Tensor& input,
                                                                const PoolWindow& window) {
  static const WindowOp<std::tuple<at::Tensor, at::Tensor>, const at::Tensor&> op(
      "relu_max_pool2d_with_winners");
  return op(input, window);
}

at::Tensor relu_max_pool2d_backward(const at::Tensor& grad_output, const at::Tensor& winners,
                                    c10::SymIntArrayRef input_size, const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef> op(
      "relu_max_pool2d_backward");
  return op(grad_output, winners, input_size, window);
}

at::Tensor relu_max_pool2d_indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                                   const PoolWindow& window) {
  static const WindowOp<at::Tensor, const at::Tensor&, c10::SymIntArrayRef> op(
      "relu_max_pool2d_indices");
  return op(winners, input_size, window);
}

using torch::autograd::variable_list;

/// The values needed to compute a gradient, in addition to the winners.
struct PoolSettings {
  std::vector<c10::SymInt> input_size;
  std::vector<std::int64_t> kernel_size;
  std::vector<std::int64_t> stride;
  std::vector<std::int64_t> padding;
  std::vector<std::int64_t> dilation;
  bool ceil_mode = false;

  PoolWindow window() const { return {kernel_size, stride, padding, dilation, ceil_mode}; }

  template <typename Self>
  static auto fields(Self& self) {
    return std::tie(self.input_size, self.kernel_size, self.stride, self.padding, self.dilation,
                    self.ceil_mode);
  }
};

/// Gather the elements that the outputs won from a tensor of the input's shape; zero for outputs
/// without a gradient. This is the derivative in forward mode, and the derivative of the backward
/// pass.
at::Tensor take_won(const at::Tensor& of_input, const at::Tensor& winners,
                    const PoolWindow& window) {
  const at::Tensor indices = relu_max_pool2d_indices(winners, of_input.sym_sizes(), window);
  const bool bytes = winners.scalar_type() == at::kByte;
  const at::Tensor alive =
      winners.to(at::kLong).lt(bytes ? std::int64_t{1} << 7 : std::int64_t{1} << 31);
  const at::Tensor taken =
      at::gather(of_input.flatten(-2), -1, at::where(alive, indices, 0).flatten(-2))
          .view_symint(winners.sym_sizes());
  return at::where(alive, taken, 0);
}

struct PoolBackward {
  static constexpr const char* kName = "ReluMaxPool2DBackward";
  using Settings = PoolSettings;

  static variable_list compute(const variable_list& grads, const Saved<PoolSettings>& saved) {
    return {relu_max_pool2d_backward(grads[0], saved.tensors[0], saved.settings.input_size,
                                     saved.settings.window())};
  }
};

struct PoolDoubleBackward {
  static constexpr const char* kName = "ReluMaxPool2DBackwardBackward";
  using Settings = PoolSettings;

  static variable_list compute(const variable_list& grads, const Saved<PoolSettings>& saved) {
    return {take_won(grads[0], saved.tensors[0], saved.settings.window())};
  }
};

/// Set the result's history, so that its gradient propagates to `from`.
template <typename Formula>
void set_history(const at::Tensor& result, const at::Tensor& from, const at::Tensor& winners,
                 const PoolWindow& window, c10::SymIntArrayRef input_size) {
  const auto node = make_node<FormulaNode<Formula>>(PoolSettings{
      .input_size = input_size.vec(),
      .kernel_size = window.kernel_size.vec(),
      .stride = window.stride.vec(),
      .padding = window.padding.vec(),
      .dilation = window.dilation.vec(),
      .ceil_mode = window.ceil_mode,
  });
  node->save_inputs(winners);
  node->set_next_edges(torch::autograd::collect_next_edges(from));
  torch::autograd::set_history(result, node);
}

std::tuple<at::Tensor, at::Tensor> with_winners(const at::Tensor& input, const PoolWindow& window) {
  const auto results = below_autograd([&] { return relu_max_pool2d_with_winners(input, window); });
  const auto& [output, winners] = results;
  if (torch::autograd::compute_requires_grad(input)) {
    set_history<PoolBackward>(output, input, winners, window, input.sym_sizes());
  }
  if (has_tangents(input)) {
    set_tangent(output, take_won(input._fw_grad(/*level=*/0), winners, window));
  }
  return results;
}

at::Tensor forward(const at::Tensor& input, const PoolWindow& window) {
  if (torch::autograd::compute_requires_grad(input) || has_tangents(input)) {
    return std::get<0>(with_winners(input, window));
  }
  return below_autograd([&] { return relu_max_pool2d(input, window); });
}

at::Tensor backward(const at::Tensor& grad_output, const at::Tensor& winners,
                    c10::SymIntArrayRef input_size, const PoolWindow& window) {
  const at::Tensor result = below_autograd(
      [&] { return relu_max_pool2d_backward(grad_output, winners, input_size, window); });
  if (torch::autograd::compute_requires_grad(grad_output)) {
    set_history<PoolDoubleBackward>(result, grad_output, winners, window, input_size);
  }
  if (has_tangents(grad_output)) {
    set_tangent(result, relu_max_pool2d_backward(grad_output._fw_grad(/*level=*/0), winners,
                                                 input_size, window));
  }
  return result;
}

at::Tensor indices(const at::Tensor& winners, c10::SymIntArrayRef input_size,
                   const PoolWindow& window) {
  return below_autograd([&] { return relu_max_pool2d_indices(winners, input_size, window); });
}

}  // namespace pool_autograd

}  // namespace

TORCH_LIBRARY_IMPL(convtime, CPU, library) {
  library.impl("relu_max_pool2d", with_window<aten::forward, const at::Tensor&>);
  library.impl("relu_max_pool2d_with_winners", with_window<aten::with_winners, const at::Tensor&>);
  library.impl("relu_max_pool2d_indices",
               with_window<aten::indices, const at::Tensor&, at::IntArrayRef>);
  library.impl("relu_max_pool2d_backward",
               with_window<aten::backward, const at::Tensor&, const at::Tensor&, at::IntArrayRef>);
}

#ifdef CONVTIME_WITH_CUDA
TORCH_LIBRARY_IMPL(convtime, CUDA, library) {
  library.impl("relu_max_pool2d", with_window<cuda::forward, const at::Tensor&>);
  library.impl("relu_max_pool2d_with_winners", with_window<cuda::with_winners, const at::Tensor&>);
  library.impl("relu_max_pool2d_indices",
               with_window<cuda::indices, const at::Tensor&, at::IntArrayRef>);
  library.impl("relu_max_pool2d_backward",
               with_window<cuda::backward, const at::Tensor&, const at::Tensor&, at::IntArrayRef>);
}
#endif

TORCH_LIBRARY_IMPL(convtime, Autograd, library) {
  library.impl("relu_max_pool2d", with_window<pool_autograd::forward, const at::Tensor&>);
  library.impl("relu_max_pool2d_with_winners",
               with_window<pool_autograd::with_winners, const at::Tensor&>);
  library.impl("relu_max_pool2d_backward", with_window<pool_autograd::backward, const at::Tensor&,
                                                       const at::Tensor&, c10::SymIntArrayRef>);
  library.impl("relu_max_pool2d_indices",
               with_window<pool_autograd::indices, const at::Tensor&, c10::SymIntArrayRef>);
}

}  // namespace convtime::ops
