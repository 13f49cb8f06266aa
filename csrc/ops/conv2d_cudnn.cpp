#include <ATen/Context.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/native/ConvUtils.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "conv/plan.h"
#include "conv/plan_cache.h"
#include "conv/problem.h"
#include "conv/selection.h"
#include "ops/conv2d.h"

namespace convtime::ops {
namespace {

conv::TensorShape describe(const at::Tensor& tensor, bool channels_last) {
  return conv::describe(tensor.sizes(), tensor.strides(), tensor.const_data_ptr(), channels_last);
}

cudnnDataType_t data_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return CUDNN_DATA_FLOAT;
    case at::kDouble:
      return CUDNN_DATA_DOUBLE;
    case at::kHalf:
      return CUDNN_DATA_HALF;
    case at::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      TORCH_INTERNAL_ASSERT(false, "conv2d let a dtype through: ", type);
  }
}

conv::Problem describe_problem(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                               const Conv2dParams& params) {
  const bool channels_last =
      at::native::cudnn_conv_suggest_memory_format(x, w) == at::MemoryFormat::ChannelsLast;
  const at::Context& context = at::globalContext();
  conv::Problem problem;
  problem.pass = conv::Pass::kFprop;
  problem.device = x.get_device();
  problem.rank = static_cast<std::int32_t>(x.dim());
  problem.data_type = data_type(x.scalar_type());
  problem.x = describe(x, channels_last);
  problem.w = describe(w, channels_last);
  problem.y = describe(y, channels_last);
  std::copy(params.padding.begin(), params.padding.end(), problem.padding.begin());
  std::copy(params.stride.begin(), params.stride.end(), problem.stride.begin());
  std::copy(params.dilation.begin(), params.dilation.end(), problem.dilation.begin());
  problem.deterministic = context.deterministicCuDNN() || context.deterministicAlgorithms();
  problem.allow_tf32 = context.allowTF32CuDNN(at::Float32Op::CONV);
  problem.heuristic_mode_b = at::native::cudnnv8_use_heur_mode_b();
  return problem;
}

/// Runs a plan with workspace from PyTorch's allocator; false where there is no memory for it.
bool try_run(const conv::Plan& plan, cudnnHandle_t handle, const at::Tensor& x, const at::Tensor& w,
             const at::Tensor& y) {
  at::DataPtr workspace;
  if (plan.workspace_bytes() > 0) {
    try {
      workspace = c10::cuda::CUDACachingAllocator::get()->allocate(plan.workspace_bytes());
    } catch (const c10::OutOfMemoryError&) {
      (void)cudaGetLastError();
      return false;
    }
  }
  plan.run(handle, {x.data_ptr(), w.data_ptr(), y.data_ptr(), workspace.get()});
  return true;
}

}  // namespace

at::Tensor conv2d_cudnn(const at::Tensor& input, const at::Tensor& weight,
                        const Conv2dParams& params) {
  const c10::cuda::CUDAGuard guard(input.device());
  // The layouts follow PyTorch step by step: at::_convolution, then at::cudnn_convolution.
  const at::Tensor x = input.contiguous(
      at::native::_determine_backend_memory_format(input, weight, at::native::ConvBackend::Cudnn));
  const at::Tensor y = at::detail::empty_cuda(
      at::native::conv_output_size(x.sizes(), weight.sizes(), params.padding, params.stride,
                                   params.dilation),
      x.options().memory_format(at::native::cudnn_conv_suggest_memory_format(x, weight)));
  const at::Tensor w = weight.contiguous(y.suggest_memory_format());

  const conv::Problem problem = describe_problem(x, w, y, params);
  // Fetched for each call: PyTorch's pool binds it to this thread, device and current stream.
  cudnnHandle_t handle = at::native::getCudnnHandle();
  const auto attempt = [&](const conv::Plan& plan) { return try_run(plan, handle, x, w, y); };
  conv::PlanCache& cache = conv::plan_cache_of_this_thread();
  if (const conv::Plan* plan = cache.find(problem); plan == nullptr || !attempt(*plan)) {
    cache.insert(problem, conv::select_as_pytorch(handle, problem, attempt));
  }
  return y;
}

}  // namespace convtime::ops
