#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv/activation.h"
#include "core/enum_names.h"
#include "kernels/tutorial/steps.h"

#ifdef CONVTIME_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>

#include "kernels/tutorial/tutorial.h"
#include "ops/kernels/element_type.h"
#endif

namespace convtime::ops {
namespace {

using namespace tutorial;

constexpr const char* kPool = "tutorial_relu_max_pool2d";
constexpr const char* kActivation = "tutorial_activation";

template <typename Choices>
auto choose(const Choices& choices, const char* op, const char* what, std::string_view name) {
  return enum_from_string(choices, std::string(op) + ": " + what, std::string(name));
}

void check_dtype(const char* op, const at::Tensor& input) {
  TORCH_CHECK(input.scalar_type() == at::kHalf || input.scalar_type() == at::kFloat, op,
              ": dtype must be float16 or float32, got ", input.scalar_type());
}

/// Called last, so that all other checks also run without a GPU.
void check_device(const char* op, const at::Tensor& input) {
  TORCH_CHECK(input.is_cuda(), op, ": input must be on a CUDA device, because the tutorial's ",
              "kernels run on a GPU, got ", input.device());
}

// --- ReLU and max-pooling -----------------------------------------------------------------------

struct Window {
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
};

struct PoolRequest {
  PoolStep step;
  Build build;
  PoolSizes sizes;
};

void check_number(const char* name, std::int64_t value, std::int64_t minimum) {
  TORCH_CHECK(minimum <= value && value <= std::numeric_limits<std::int32_t>::max(), kPool, ": ",
              name, " must be between ", minimum, " and 2147483647, got ", value);
}

/// Check that a step supports the window and the tensors.
void check_step(PoolStep step, const at::Tensor& input, const Window& window, bool channels_last) {
  const auto [kernel, stride, padding] = window;
  if (step == PoolStep::kUnrolled || step == PoolStep::kVectorised) {
    TORCH_CHECK(is_compiled(kernel, stride, padding), kPool, ": step '", to_string(step),
                "' is compiled for kernel_size 3 and padding 1, and for kernel_size 2 and padding "
                "0, both with stride 2, got kernel_size ",
                kernel, ", stride ", stride, " and padding ", padding,
                "; 'naive', 'coalesced' and 'constant_memory' support any window");
  }
  if (step == PoolStep::kSharedMemory) {
    // Clamped, so that products of sizes do not overflow; larger values do not fit in any case.
    const std::int64_t k = std::min(kernel, kMaxSharedBytes);
    const std::int64_t step_by = std::min(stride, kMaxSharedBytes);
    const std::int64_t size = input.element_size();
    const std::int64_t bytes =
        channels_last ? Tile<true>::bytes(k, step_by, size) : Tile<false>::bytes(k, step_by, size);
    TORCH_CHECK(bytes <= kMaxSharedBytes, kPool, ": step 'shared_memory' has room for ",
                kMaxSharedBytes, " bytes of a block's input, but kernel_size ", kernel,
                " with stride ", stride, " needs more; use a smaller window or another step");
  }
}

PoolRequest check_pool(const at::Tensor& input, const Window& window, std::string_view step_name,
                       std::string_view build_name) {
  const auto [kernel, stride, padding] = window;
  const PoolStep step = choose(kPoolSteps, kPool, "step", step_name);
  const Build build = choose(kBuilds, kPool, "build", build_name);
  check_dtype(kPool, input);
  TORCH_CHECK(input.dim() == 4 && input.size(1) > 0 && input.size(2) > 0 && input.size(3) > 0,
              kPool, ": input must have shape (N, C, H, W) with at least one channel, row and ",
              "column, got ", input.sizes());
  check_number("kernel_size", kernel, 1);
  check_number("stride", stride, 1);
  check_number("padding", padding, 0);
  TORCH_CHECK(padding <= kernel / 2, kPool, ": padding must be at most half of kernel_size ",
              kernel, ", got ", padding);
  std::array<std::int64_t, 2> outputs{};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t size = input.size(2 + static_cast<std::int64_t>(i));
    TORCH_CHECK(kernel <= size + 2 * padding, kPool, ": kernel_size must be at most height and ",
                "width of the input with the padding on both sides, got ", kernel, " for shape ",
                input.sizes(), " and padding ", padding);
    outputs[i] = (size + 2 * padding - kernel) / stride + 1;
  }
  const std::int64_t output_count = input.size(0) * input.size(1) * outputs[0] * outputs[1];
  TORCH_CHECK(input.numel() <= kMaxElements && output_count <= kMaxElements, kPool,
              ": input and output must have at most ", kMaxElements, " elements, got ",
              input.numel(), " and ", output_count, "; use convtime.ops.relu_max_pool2d instead");
  const bool channels_last = input.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  check_step(step, input, window, channels_last);
  check_device(kPool, input);
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  return {step,
          build,
          {narrow(input.size(0)), narrow(input.size(1)), narrow(input.size(2)),
           narrow(input.size(3)), narrow(outputs[0]), narrow(outputs[1]), narrow(kernel),
           narrow(stride), narrow(padding), channels_last}};
}

// --- Activations --------------------------------------------------------------------------------

struct ActivationRequest {
  ActivationStep step;
  Build build;
  Activation activation;
};

ActivationRequest check_activation(const at::Tensor& input,
                                   const std::optional<at::Tensor>& grad_output,
                                   std::string_view activation_name, std::string_view step_name,
                                   std::string_view build_name) {
  const auto activation = conv::parse_activation(activation_name);
  TORCH_CHECK(activation == Activation::kRelu || activation == Activation::kGelu ||
                  activation == Activation::kGeluTanh,
              kActivation, ": activation must be one of 'relu', 'gelu', 'gelu_tanh', got '",
              activation_name, "'");
  const ActivationStep step = choose(kActivationSteps, kActivation, "step", step_name);
  const Build build = choose(kActivationBuilds, kActivation, "build", build_name);
  check_dtype(kActivation, input);
  if (grad_output.has_value()) {
    TORCH_CHECK(grad_output->sizes() == input.sizes() &&
                    grad_output->scalar_type() == input.scalar_type() &&
                    grad_output->device() == input.device(),
                kActivation, ": grad_output must have the input's shape ", input.sizes(),
                ", dtype ", input.scalar_type(), " and device ", input.device(), ", got ",
                grad_output->sizes(), ", ", grad_output->scalar_type(), " and ",
                grad_output->device());
  }
  check_device(kActivation, input);
  return {step, build, *activation};
}

// --- The ops; without CUDA, they check their arguments, and refuse the device ------------------

#ifdef CONVTIME_WITH_CUDA
std::vector<std::int64_t> listed(const KernelFacts& facts) {
  return {facts.registers, facts.local_bytes, facts.shared_bytes, facts.threads, facts.blocks};
}
#endif

at::Tensor pool(const at::Tensor& input, std::int64_t kernel_size, std::int64_t stride,
                std::int64_t padding, std::string_view step, std::string_view build) {
  [[maybe_unused]] const PoolRequest request =
      check_pool(input, {kernel_size, stride, padding}, step, build);
#ifdef CONVTIME_WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  const at::MemoryFormat format = input.suggest_memory_format();
  const at::Tensor dense = input.contiguous(format);
  const PoolSizes& sizes = request.sizes;
  const at::Tensor output = at::empty(
      {sizes.batch, sizes.channels, sizes.out_height, sizes.out_width}, input.options(), format);
  if (output.numel() > 0) {
    launch_pool({request.step, request.build, element_type_of(input), dense.const_data_ptr(),
                 output.mutable_data_ptr(), sizes},
                at::cuda::getCurrentCUDAStream());
  }
  return output;
#else
  return {};
#endif
}

std::vector<std::int64_t> facts_of_pool(const at::Tensor& input, std::int64_t kernel_size,
                                        std::int64_t stride, std::int64_t padding,
                                        std::string_view step, std::string_view build) {
  [[maybe_unused]] const PoolRequest request =
      check_pool(input, {kernel_size, stride, padding}, step, build);
#ifdef CONVTIME_WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  return listed(pool_facts(
      {request.step, request.build, element_type_of(input), nullptr, nullptr, request.sizes}));
#else
  return {};
#endif
}

at::Tensor activation(const at::Tensor& input, const std::optional<at::Tensor>& grad_output,
                      std::string_view name, std::string_view step, std::string_view build) {
  [[maybe_unused]] const ActivationRequest request =
      check_activation(input, grad_output, name, step, build);
#ifdef CONVTIME_WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  const at::MemoryFormat format = input.suggest_memory_format();
  const at::Tensor dense = input.contiguous(format);
  const at::Tensor gradient =
      grad_output.has_value() ? grad_output->contiguous(format) : at::Tensor();
  const at::Tensor output = at::empty_like(dense);
  if (output.numel() > 0) {
    launch_activation({request.step, request.build, request.activation, element_type_of(input),
                       grad_output.has_value(), dense.const_data_ptr(),
                       gradient.defined() ? gradient.const_data_ptr() : nullptr,
                       output.mutable_data_ptr(), output.numel()},
                      at::cuda::getCurrentCUDAStream());
  }
  return output;
#else
  return {};
#endif
}

std::vector<std::int64_t> facts_of_activation(const at::Tensor& input,
                                              const std::optional<at::Tensor>& grad_output,
                                              std::string_view name, std::string_view step,
                                              std::string_view build) {
  [[maybe_unused]] const ActivationRequest request =
      check_activation(input, grad_output, name, step, build);
#ifdef CONVTIME_WITH_CUDA
  const c10::cuda::CUDAGuard guard(input.device());
  return listed(
      activation_facts({request.step, request.build, request.activation, element_type_of(input),
                        grad_output.has_value(), nullptr, nullptr, nullptr, input.numel()}));
#else
  return {};
#endif
}

}  // namespace

TORCH_LIBRARY_IMPL(convtime, CompositeExplicitAutograd, library) {
  library.impl("tutorial_relu_max_pool2d", pool);
  library.impl("tutorial_relu_max_pool2d_facts", facts_of_pool);
  library.impl("tutorial_activation", activation);
  library.impl("tutorial_activation_facts", facts_of_activation);
}

}  // namespace convtime::ops
