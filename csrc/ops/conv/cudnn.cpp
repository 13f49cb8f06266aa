#include <ATen/Context.h>
#include <ATen/core/DimVector.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/add_cuda_dispatch.h>
#include <ATen/ops/as_strided_cuda_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/backend.h"
#include "conv/convolution.h"
#include "conv/errata.h"
#include "conv/listed_engine.h"
#include "conv/plan_cache.h"
#include "conv/problem.h"
#include "conv/stored_plans.h"
#include "core/cuda.h"
#include "core/lru_cache.h"
#include "kernels/conv_epilogue/conv_epilogue.h"
#include "kernels/known_duration/known_duration.h"
#include "ops/conv/convolutions.h"
#include "ops/conv/engine_pass.h"
#include "ops/kernels/element_type.h"

namespace convtime::ops {
namespace {

using at::native::cudnn_conv_suggest_memory_format;

constexpr const char* kEnginesName = "engines";  // prefix of error messages
const PolicyRequest kNoPolicy;

/// PyTorch's flags for cuDNN convolutions, read once per call.
struct CudnnFlags {
  bool benchmark = at::globalContext().benchmarkCuDNN();
  int benchmark_limit = at::globalContext().benchmarkLimitCuDNN();
  bool deterministic =
      at::globalContext().deterministicCuDNN() || at::globalContext().deterministicAlgorithms();
  bool allow_tf32 = at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
  bool heuristic_mode_b = at::native::cudnnv8_use_heur_mode_b();
};

conv::Policy policy_of(conv::Pass pass, const CudnnFlags& flags, const PolicyRequest& request) {
  conv::Policy policy;
  if (request.engine.has_value() && request.engine->pass.value_or(pass) == pass) {
    policy.kind = conv::PolicyKind::kEngine;
    policy.engine = request.engine->engine;
  } else if (request.benchmark.value_or(flags.benchmark)) {
    policy.kind = conv::PolicyKind::kBenchmark;
    policy.benchmark_limit = flags.benchmark_limit;
  } else {
    policy.kind = conv::PolicyKind::kHeuristic;
    policy.heuristic_mode_b = flags.heuristic_mode_b;
  }
  return policy;
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
      TORCH_INTERNAL_ASSERT(false, "unsupported dtype not rejected by the op: ", type);
  }
}

/// Workspace from PyTorch's allocator, on the current device and stream.
class CachingWorkspace final : public conv::Workspace {
 public:
  void* reserve(std::int64_t bytes) override {
    if (bytes > bytes_) {
      bytes_ = 0;
      memory_.clear();
      try {
        memory_ = c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<std::size_t>(bytes));
      } catch (const c10::OutOfMemoryError&) {
        (void)cudaGetLastError();
        return nullptr;
      }
      bytes_ = bytes;
    }
    return memory_.get();
  }

  std::int64_t largest_block() override {
    std::size_t bytes = 0;
    c10::cuda::CUDACachingAllocator::cacheInfo(c10::cuda::current_device(), &bytes);
    return static_cast<std::int64_t>(bytes);
  }

  void trim() override {
    bytes_ = 0;
    memory_.clear();
    if (at::native::_cudnn_get_conv_benchmark_empty_cache()) {
      c10::cuda::CUDACachingAllocator::emptyCache();
    }
  }

 private:
  at::DataPtr memory_;
  std::int64_t bytes_ = 0;
};

bool is_channels_last(const at::Tensor& x, const at::Tensor& w) {
  return cudnn_conv_suggest_memory_format(x, w) != at::MemoryFormat::Contiguous;
}

at::MemoryFormat channels_last_format(const at::Tensor& x) {
  return x.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

/// Whether the images of a batch have one pixel, so that their strides fit both layouts.
bool has_one_pixel(const at::Tensor& batch) {
  return std::ranges::all_of(batch.sizes().slice(2), [](std::int64_t size) { return size == 1; });
}

/// Whether cuDNN takes images of one pixel for channels-last ones although the strides that it is
/// given are of the other layout: its engines for these activations then read and write elsewhere
/// (found with cuDNN 9.19). The graphs that PyTorch has, without an activation or with ReLU, are
/// right.
bool misreads_pixels(conv::Activation activation) {
  return activation != conv::Activation::kIdentity && activation != conv::Activation::kRelu;
}

conv::TensorShape describe(const at::Tensor& tensor, bool channels_last) {
  return conv::describe(tensor.sizes(), tensor.strides(), tensor.const_data_ptr(), channels_last);
}

/// Return the problem with these operands.
conv::Problem with_operands(conv::Problem problem, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& y) {
  const bool channels_last = is_channels_last(x, w);
  problem.x = describe(x, channels_last);
  problem.w = describe(w, channels_last);
  problem.y = describe(y, channels_last);
  return problem;
}

/// Return the tensor that a pass computes.
const at::Tensor& result_of(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& y) {
  return pass == conv::Pass::kFprop ? y : pass == conv::Pass::kDgrad ? x : w;
}

/// Return the key of the plan that computes one of x, w and y from the other two; all have their
/// final layout.
conv::PlanKey key_of(conv::Pass pass, const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                     const ConvParams& params, const CudnnFlags& flags,
                     const PolicyRequest& policy) {
  conv::PlanKey key;
  key.problem = with_operands({}, x, w, y);
  key.problem.pass = pass;
  key.problem.device = x.get_device();
  key.problem.rank = static_cast<std::int32_t>(x.dim());
  key.problem.data_type = data_type(x.scalar_type());
  std::copy(params.padding.begin(), params.padding.end(), key.problem.padding.begin());
  std::copy(params.stride.begin(), params.stride.end(), key.problem.stride.begin());
  std::copy(params.dilation.begin(), params.dilation.end(), key.problem.dilation.begin());
  key.problem.deterministic = flags.deterministic;
  key.problem.allow_tf32 = flags.allow_tf32;
  key.policy = policy_of(pass, flags, policy);
  return key;
}

/// Not data_ptr, which would copy a tensor that is copied lazily.
void* data_to_read(const at::Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

conv::Operands operands_of(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& y) {
  return {pass == conv::Pass::kDgrad ? x.mutable_data_ptr() : data_to_read(x),
          pass == conv::Pass::kWgrad ? w.mutable_data_ptr() : data_to_read(w),
          pass == conv::Pass::kFprop ? y.mutable_data_ptr() : data_to_read(y)};
}

/// The number of elements of a channel of an example.
std::int64_t plane_of(const at::Tensor& batch) {
  return batch.numel() == 0 ? 0 : batch.numel() / batch.size(0) / batch.size(1);
}

/// Return `other` and the bias, dense; undefined if there are none.
std::pair<at::Tensor, at::Tensor> dense_operands(const EpilogueOperands& epilogue,
                                                 at::MemoryFormat format) {
  return {epilogue.other.has_value() ? epilogue.other->contiguous(format) : at::Tensor(),
          is_defined(epilogue.bias) ? epilogue.bias->contiguous() : at::Tensor()};
}

/// Call function(arguments) with those of an epilogue's kernel that writes y.
template <typename Function>
void with_epilogue_arguments(const at::Tensor& y, const EpilogueOperands& epilogue,
                             const Function& function) {
  const at::MemoryFormat format = y.suggest_memory_format();
  TORCH_INTERNAL_ASSERT(y.is_contiguous(format), "a convolution's output has gaps");
  const auto [z, b] = dense_operands(epilogue, format);
  const auto read = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr() : nullptr;
  };
  function(ConvEpilogue{.y = y.mutable_data_ptr(),
                        .z = read(z),
                        .b = read(b),
                        .alpha = epilogue.alpha,
                        .activation = epilogue.activation.activation,
                        .negative_slope = epilogue.activation.negative_slope,
                        .count = y.numel(),
                        .channels = y.size(1),
                        .plane = plane_of(y),
                        .channels_last = format != at::MemoryFormat::Contiguous});
}

/// Call a function of conv, whose errors become PyTorch's, prefixed by the op.
template <typename Function>
auto with_torch_errors(const char* op, const Function& function) {
  try {
    return function();
  } catch (const c10::Error&) {
    throw;
  } catch (const conv::NoEngine&) {
    throw;
  } catch (const conv::OutOfMemory& error) {
    C10_THROW_ERROR(OutOfMemoryError, c10::str(op, ": ", error.what()));
  } catch (const CudaError& error) {
    C10_CUDA_CHECK(error.status());  // throws PyTorch's own exception for it
    throw;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(Error, c10::str(op, ": ", error.what()));
  }
}

// The following code mirrors ATen step by step: cudnn/ConvShared.cpp, then Convolution.cpp.

conv::GpuKind gpu_kind(std::int32_t device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  return {10 * properties.major + properties.minor, properties.multiProcessorCount};
}

/// Call function(x, w, y) with operands of another layout, and copy what it computes to the result.
template <typename Function>
void in_layout(bool channels_last, conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
               const at::Tensor& y, const Function& function) {
  const at::MemoryFormat format =
      channels_last ? channels_last_format(x) : at::MemoryFormat::Contiguous;
  const at::Tensor& result = result_of(pass, x, w, y);
  const auto converted = [&](const at::Tensor& tensor) {
    return &tensor == &result ? at::empty_like(tensor, tensor.options(), format)
                              : tensor.contiguous(format);
  };
  const at::Tensor other_x = converted(x);
  const at::Tensor other_w = converted(w);
  const at::Tensor other_y = converted(y);
  function(other_x, other_w, other_y);
  result.copy_(result_of(pass, other_x, other_w, other_y));
}

/// A call of an op that computes one or more of y, x and w in y = conv(x, w).
class CudnnCall {
 public:
  CudnnCall(const char* op, const ConvParams& params, const PolicyRequest& policy)
      : op_(op), params_(params), policy_(policy) {}
  virtual ~CudnnCall() = default;

  at::Tensor fprop(const at::Tensor& x, const at::Tensor& w) const {
    const at::Tensor y = empty_output(x, w);
    const at::MemoryFormat format = y.suggest_memory_format();
    run(conv::Pass::kFprop, x.contiguous(format), w.contiguous(format), y);
    return y;
  }

  /// Like ATen's cudnn_convolution_relu and _add_relu, unless separate kernels are needed, are more
  /// accurate, or were measured to be faster.
  at::Tensor fprop(const at::Tensor& given_x, const at::Tensor& given_w,
                   const EpilogueOperands& epilogue) const {
    std::string why = conv::erratum(epilogue.activation.activation,
                                    data_type(given_x.scalar_type()), flags_.allow_tf32);
    const at::Tensor y = why.empty() ? empty_output(given_x, given_w) : at::Tensor();
    if (why.empty() && misreads_pixels(epilogue.activation.activation) &&
        (has_one_pixel(given_x) || has_one_pixel(y))) {
      why = "cuDNN misreads images of one pixel";
    }
    if (!why.empty()) {
      TORCH_CHECK(!policy_.engine.has_value(), op_, ": policy names a cuDNN engine, but ", why,
                  ", so a convtime kernel computes the epilogue; leave policy out");
      return apply_steps(given_x, given_w, epilogue);
    }
    const at::MemoryFormat format = y.suggest_memory_format();
    const at::Tensor x = given_x.contiguous(format);
    const at::Tensor w = given_w.contiguous(format);
    auto [z, b] = dense_operands(epilogue, format);
    const float alpha = epilogue.other.has_value() ? static_cast<float>(epilogue.alpha) : 0;
    if (epilogue.activation.activation == conv::Activation::kRelu) {
      // PyTorch's graph always has both sums: without `other` it adds y times zero. The same graph
      // offers the same engines.
      z = z.defined() ? z : y;
      b = b.defined() ? b : at::zeros({y.size(1)}, y.options());
    }
    conv::PlanKey key = key_of(conv::Pass::kFprop, x, w, y, params_, flags_, policy_);
    conv::Operands operands = operands_of(conv::Pass::kFprop, x, w, y);
    const bool channels_last = is_channels_last(x, w);
    key.problem.epilogue.activation = epilogue.activation.activation;
    if (epilogue.activation.activation == conv::Activation::kLeakyRelu) {
      key.problem.epilogue.negative_slope = static_cast<float>(epilogue.activation.negative_slope);
    }
    if (z.defined()) {
      key.problem.epilogue.alpha = alpha;
      key.problem.epilogue.z = describe(z, channels_last);
      operands.z = data_to_read(z);
    }
    if (b.defined()) {
      at::DimVector size(static_cast<std::size_t>(y.dim()), 1);
      size[1] = b.size(0);
      key.problem.epilogue.b = describe(b.view(size), channels_last);
      operands.b = data_to_read(b);
    }
    switch (choose_way(key, operands, x, w, epilogue)) {
      case Way::kFused:
        break;
      case Way::kSteps:
        return apply_steps(x, w, epilogue);
      case Way::kConverted:
        return apply_converted(x, w, epilogue);
    }
    return y;
  }

  at::Tensor dgrad(const at::Tensor& y, const at::Tensor& w, at::IntArrayRef x_size) const {
    const at::MemoryFormat format = cudnn_conv_suggest_memory_format(y, w);
    const at::Tensor x = at::detail::empty_cuda(x_size, y.options().memory_format(format));
    run(conv::Pass::kDgrad, x, w.contiguous(format), y.contiguous(format));
    return x;
  }

  at::Tensor wgrad(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef w_size) const {
    const at::MemoryFormat format = cudnn_conv_suggest_memory_format(x, y);
    const at::Tensor w = at::empty(w_size, y.options(), format);
    run(conv::Pass::kWgrad, x.contiguous(format), w, y.contiguous(format));
    return w;
  }

 protected:
  /// Compute one of x, w and y, which have their final layouts.
  virtual void run(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
                   const at::Tensor& y) const {
    if (run_stored(pass, x, w, y)) {
      return;
    }
    try {
      run(key_of(pass, x, w, y, params_, flags_, policy_), operands_of(pass, x, w, y));
    } catch (const conv::NoEngine& error) {
      TORCH_CHECK(false, op_, ": ", error.what());
    }
  }

  /// Compute with the stored plan of the problem, and return whether there is one. One that cannot
  /// be used is forgotten, with a warning, so that PyTorch's choice takes its place.
  bool run_stored(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& y) const {
    conv::StoredPlans& plans = conv::stored_plans();
    if (plans.empty() || !policy_.is_empty()) {
      return false;
    }
    const conv::PlanKey key = key_of(pass, x, w, y, params_, flags_, policy_);
    const conv::GpuKind gpu = gpu_kind(key.problem.device);
    const std::shared_ptr<conv::StoredPlan> stored = plans.find(key.problem, gpu);
    if (stored == nullptr) {
      return false;
    }
    const std::string why = stored->channels_last.has_value()
                                ? why_not_in_layout(*stored, key.problem, x, w, y)
                                : why_not_run(*stored, key.problem, operands_of(pass, x, w, y));
    if (why.empty()) {
      return true;
    }
    // Otherwise another thread has already said so.
    if (plans.erase(key.problem, gpu, stored.get())) {
      TORCH_WARN(op_, ": the stored plan for ", stored->name,
                 " cannot be used, so PyTorch's choice takes its place: ", why);
    }
    return false;
  }

 private:
  std::string why_not_in_layout(conv::StoredPlan& stored, const conv::Problem& problem,
                                const at::Tensor& x, const at::Tensor& w,
                                const at::Tensor& y) const {
    const conv::Pass pass = problem.pass;
    std::string why;
    try {
      in_layout(
          *stored.channels_last, pass, x, w, y,
          [&](const at::Tensor& other_x, const at::Tensor& other_w, const at::Tensor& other_y) {
            why = why_not_run(stored, with_operands(problem, other_x, other_w, other_y),
                              operands_of(pass, other_x, other_w, other_y));
          });
    } catch (const c10::OutOfMemoryError& error) {
      (void)cudaGetLastError();
      why = error.what_without_backtrace();
    }
    return why;
  }

  /// Run a stored plan, and return why that failed; empty if it did not.
  std::string why_not_run(conv::StoredPlan& stored, const conv::Problem& problem,
                          const conv::Operands& operands) const {
    return with_torch_errors(op_, [&]() -> std::string {
      cudnnHandle_t handle = at::native::getCudnnHandle();
      if (!stored.checked) {
        // Some engines need the thread to have a CUDA context.
        CONVTIME_CUDA_CHECK(cudaSetDevice(problem.device));
        std::string why = conv::why_unusable(handle, problem, stored.engine);
        if (!why.empty()) {
          return why;
        }
        stored.checked = true;
      }
      conv::PlanKey key{problem, {}};
      key.policy.kind = conv::PolicyKind::kEngine;
      key.policy.engine = stored.engine;
      CachingWorkspace workspace;
      try {
        conv::convolve(handle, key, operands, workspace);
      } catch (const CudaError&) {
        throw;
      } catch (const c10::Error&) {
        throw;
      } catch (const std::exception& error) {
        return error.what();
      }
      return "";
    });
  }

  at::Tensor empty_output(const at::Tensor& x, const at::Tensor& w) const {
    return at::detail::empty_cuda(
        at::native::conv_output_size(x.sizes(), w.sizes(), params_.padding, params_.stride,
                                     params_.dilation),
        x.options().memory_format(cudnn_conv_suggest_memory_format(x, w)));
  }

  /// How a convolution and its epilogue are computed.
  enum class Way {
    kFused,      ///< in cuDNN's graph
    kSteps,      ///< in cuDNN's convolution, then in one kernel
    kConverted,  ///< like kSteps, but in channels-last layout, with output channels padded
  };

  at::Tensor apply_steps(const at::Tensor& x, const at::Tensor& w,
                         const EpilogueOperands& epilogue) const {
    const at::Tensor y = fprop(x, w);
    cuda_apply_epilogue(y, epilogue);
    return y;
  }

  /// Engines need channels-last layout and numbers of channels that are multiples of 16 bytes.
  /// cuDNN converts and pads others in kernels of its own, before and after, or takes slow engines.
  /// Here the epilogue's kernel converts the result and removes the padding.
  at::Tensor apply_converted(const at::Tensor& x, const at::Tensor& w,
                             const EpilogueOperands& epilogue) const {
    const at::MemoryFormat last = channels_last_format(x);
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const auto converted = [&](const at::Tensor& from, std::int64_t padded) {
      const bool is_last = from.is_contiguous(last);
      if (is_last && padded == from.size(0)) {
        return from;
      }
      at::DimVector size(from.sizes());
      size[0] = padded;
      const at::Tensor to = at::detail::empty_cuda(size, from.options().memory_format(last));
      auto* const begin = static_cast<char*>(to.mutable_data_ptr());
      if (is_last) {
        CONVTIME_CUDA_CHECK(cudaMemcpyAsync(begin, from.const_data_ptr(), from.nbytes(),
                                            cudaMemcpyDeviceToDevice, stream));
      } else {
        TORCH_INTERNAL_ASSERT(from.is_contiguous(), "a convolution's operand has gaps");
        launch_to_channels_last(element_type_of(from), from.const_data_ptr(), begin, from.size(0),
                                from.size(1), plane_of(from), stream);
      }
      if (to.nbytes() > from.nbytes()) {
        CONVTIME_CUDA_CHECK(
            cudaMemsetAsync(begin + from.nbytes(), 0, to.nbytes() - from.nbytes(), stream));
      }
      return to;
    };
    const std::int64_t multiple = channel_multiple(w);
    const std::int64_t padded = (w.size(0) + multiple - 1) / multiple * multiple;
    const at::Tensor y_last = fprop(converted(x, x.size(0)), converted(w, padded));
    TORCH_INTERNAL_ASSERT(y_last.is_contiguous(last), "a converted output's channels are not last");
    at::DimVector size(y_last.sizes());
    size[1] = w.size(0);
    const at::MemoryFormat format = is_channels_last(x, w) ? last : at::MemoryFormat::Contiguous;
    const at::Tensor y = at::detail::empty_cuda(size, x.options().memory_format(format));
    with_epilogue_arguments(y, epilogue, [&](const ConvEpilogue& arguments) {
      launch_conv_epilogue_from_channels_last(element_type_of(y), y_last.const_data_ptr(), padded,
                                              arguments, stream);
    });
    return y;
  }

  /// Of which engines need a multiple of channels.
  static std::int64_t channel_multiple(const at::Tensor& w) { return 16 / w.element_size(); }

  /// Whether apply_converted() computes it, and there is something to convert or pad: in float64,
  /// cuDNN has no channels-last engines, and its kernels count the pixels of an image in 32 bits.
  static bool is_convertible(const conv::Problem& problem, const at::Tensor& x,
                             const at::Tensor& w) {
    if (x.scalar_type() == at::kDouble || x.size(1) != w.size(1)) {
      return false;
    }
    if (is_channels_last(x, w)) {
      const std::int64_t multiple = channel_multiple(w);
      return x.size(1) % multiple == 0 && w.size(0) % multiple != 0;
    }
    const auto is_countable = [&](const conv::TensorShape& shape) {
      std::int64_t pixels = 1;
      for (std::int32_t dim = 2; dim < problem.rank; ++dim) {
        pixels *= shape.sizes[static_cast<std::size_t>(dim)];
      }
      return pixels <= std::numeric_limits<std::int32_t>::max();
    };
    // The strides of one channel fit both layouts, and PyTorch takes such tensors for contiguous
    // ones.
    return x.size(1) > 1 && !has_one_pixel(x) && is_countable(problem.x) && is_countable(problem.y);
  }

  /// Run the graph, unless no engine supports it or another way is known to be faster, and return
  /// the way to compute the result; the graph has computed it. Where plans are timed, a thread also
  /// times the ways, once per problem: it takes as long as a selection.
  Way choose_way(const conv::PlanKey& key, const conv::Operands& operands, const at::Tensor& x,
                 const at::Tensor& w, const EpilogueOperands& epilogue) const {
    struct Known {
      Way way;
      std::uint64_t generation;
    };
    thread_local LruCache<conv::PlanKey, Known, conv::PlanKeyHash> ways(10'000);
    const std::uint64_t generation = conv::choice_table().generation();
    const Known* const known = ways.find(key);
    const bool is_known = known != nullptr && known->generation == generation;
    if (is_known && known->way != Way::kFused) {
      return known->way;
    }
    Way way = Way::kFused;
    try {
      run(key, operands);
    } catch (const conv::NoEngine& error) {
      TORCH_CHECK(!policy_.engine.has_value(), op_, ": ", error.what());
      warn_of_steps(key.problem, error.lacked_memory());
      if (error.lacked_memory()) {
        return Way::kSteps;
      }
      way = Way::kSteps;
    }
    if (is_known) {
      return way;
    }
    if (key.policy.kind == conv::PolicyKind::kBenchmark) {
      if (conv::is_capturing(c10::cuda::getCurrentCUDAStream())) {
        return way;  // the next call times it
      }
      way = fastest_way(way, key, operands, x, w, epilogue);
    }
    ways.insert(key, {way, generation});
    return way;
  }

  /// Time by turns the first way that runs, and those after it which run.
  Way fastest_way(Way first, const conv::PlanKey& key, const conv::Operands& operands,
                  const at::Tensor& x, const at::Tensor& w,
                  const EpilogueOperands& epilogue) const {
    constexpr int kRounds = 3;
    struct Candidate {
      Way way;
      std::function<void()> call;
      double least = std::numeric_limits<double>::infinity();
    };
    std::vector<Candidate> candidates;
    if (first == Way::kFused) {
      candidates.push_back({Way::kFused, [&] { run(key, operands); }});
    }
    candidates.push_back({Way::kSteps, [&] { apply_steps(x, w, epilogue); }});
    if (is_convertible(key.problem, x, w)) {
      candidates.push_back({Way::kConverted, [&] { apply_converted(x, w, epilogue); }});
    }
    const auto fails = [&](const Candidate& candidate, const auto& action) {
      try {
        action();
        return false;
      } catch (const c10::Error&) {  // another way may lack an engine or memory
        if (candidate.way == first) {
          throw;
        }
        CONVTIME_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream()));
        return true;
      }
    };
    for (int round = 0; round <= kRounds; ++round) {  // the first one is not timed
      for (auto each = candidates.begin(); each != candidates.end();) {
        const bool failed = fails(*each, [&] {
          if (round == 0) {
            each->call();
          } else {
            each->least = std::min(each->least, time(each->call));
          }
        });
        each = failed ? candidates.erase(each) : std::next(each);
      }
    }
    return std::min_element(
               candidates.begin(), candidates.end(),
               [](const Candidate& a, const Candidate& b) { return a.least < b.least; })
        ->way;
  }

  void warn_of_steps(const conv::Problem& problem, bool lacked_memory) const {
    const auto rank = static_cast<std::size_t>(problem.rank);
    TORCH_WARN(op_, ": separate kernels compute the convolution and its epilogue, because cuDNN ",
               "has no engine for ", conv::to_string(problem.epilogue.activation),
               " after a convolution of ", at::IntArrayRef(problem.x.sizes.data(), rank), " with ",
               at::IntArrayRef(problem.w.sizes.data(), rank), " in this dtype and layout",
               lacked_memory ? " with the available memory" : "");
  }

  /// Return the time of a few calls, which the GPU begins when all are issued: it would wait for
  /// the host otherwise.
  static double time(const std::function<void()>& call) {
    constexpr int kCalls = 5;
    constexpr std::uint64_t kCyclesToIssue = 1'000'000;
    const EventPair events;
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    launch_sleep(kCyclesToIssue, stream);
    CONVTIME_CUDA_CHECK(cudaEventRecord(events.start.get(), stream));
    for (int i = 0; i < kCalls; ++i) {
      call();
    }
    CONVTIME_CUDA_CHECK(cudaEventRecord(events.stop.get(), stream));
    CONVTIME_CUDA_CHECK(cudaEventSynchronize(events.stop.get()));
    return events.seconds();
  }

  void run(const conv::PlanKey& key, const conv::Operands& operands) const {
    CachingWorkspace workspace;
    with_torch_errors(op_, [&] {
      // Fetched for each call: PyTorch's pool binds it to this thread, device and current stream.
      conv::convolve(at::native::getCudnnHandle(), key, operands, workspace);
    });
  }

  const char* op_;
  const ConvParams& params_;
  const PolicyRequest& policy_;
  CudnnFlags flags_;
};

at::MemoryFormat cudnn_memory_format(const at::Tensor& input, const at::Tensor& weight,
                                     const ConvParams& params) {
  using at::native::ConvBackend;
  return at::native::_determine_backend_memory_format(
      input, weight, params.transposed ? ConvBackend::CudnnTranspose : ConvBackend::Cudnn);
}

at::Tensor forward(const CudnnCall& call, const at::Tensor& input, const at::Tensor& weight,
                   const ConvParams& params) {
  const at::Tensor given = input.contiguous(cudnn_memory_format(input, weight, params));
  if (!params.transposed) {
    return call.fprop(given, weight);
  }
  return call.dgrad(given, weight,
                    at::native::conv_input_size(given.sizes(), weight.sizes(), params.padding,
                                                params.output_padding, params.stride,
                                                params.dilation, params.groups));
}

std::tuple<at::Tensor, at::Tensor> backward(const CudnnCall& call, const at::Tensor& grad_output,
                                            const at::Tensor& input, const at::Tensor& weight,
                                            const ConvParams& params, std::array<bool, 2> wanted) {
  const at::Tensor given =
      wanted[1] ? input.contiguous(cudnn_memory_format(input, weight, params)) : input;
  const at::MemoryFormat format = given.suggest_memory_format();
  at::Tensor grad_input;
  at::Tensor grad_weight;
  if (params.transposed) {
    const at::Tensor grad = grad_output.contiguous(format);
    if (wanted[0]) {
      grad_input = call.fprop(grad, weight);
    }
    if (wanted[1]) {
      grad_weight = call.wgrad(/*x=*/grad, /*y=*/given, weight.sizes());
    }
  } else {
    const at::Tensor grad = grad_output.to(format);
    if (wanted[0]) {
      grad_input = call.dgrad(grad, weight, given.sizes());
    }
    if (wanted[1]) {
      grad_weight = call.wgrad(given, grad, weight.sizes());
    }
  }
  return {grad_input, grad_weight};
}

/// Computes with stored plans only.
class StoredCall final : public CudnnCall {
 public:
  using CudnnCall::CudnnCall;

  bool was_stored() const { return was_stored_; }

 protected:
  void run(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
           const at::Tensor& y) const override {
    was_stored_ = run_stored(pass, x, w, y);
  }

 private:
  mutable bool was_stored_ = false;
};

/// Takes the place of a call, and keeps what its pass would compute from what.
class PassRecorder final : public CudnnCall {
 public:
  explicit PassRecorder(const ConvParams& params)
      : CudnnCall(kEnginesName, params, kNoPolicy), params_(params) {}

  EnginePass::Operation operation() const { return operation_; }

 protected:
  void run(conv::Pass pass, const at::Tensor& x, const at::Tensor& w,
           const at::Tensor& y) const override {
    operation_ = {key_of(pass, x, w, y, params_, CudnnFlags(), kNoPolicy).problem, x, w, y};
  }

 private:
  const ConvParams& params_;
  mutable EnginePass::Operation operation_;
};

}  // namespace

at::Tensor cudnn_forward(const char* op, const at::Tensor& input, const at::Tensor& weight,
                         const ConvParams& params, const PolicyRequest& policy) {
  const c10::cuda::CUDAGuard guard(input.device());
  return forward(CudnnCall(op, params, policy), input, weight, params);
}

at::Tensor cudnn_epilogue(const char* op, const at::Tensor& input, const at::Tensor& weight,
                          const ConvParams& params, const EpilogueOperands& epilogue,
                          const PolicyRequest& policy) {
  const c10::cuda::CUDAGuard guard(input.device());
  const CudnnCall call(op, params, policy);
  return call.fprop(input.contiguous(cudnn_memory_format(input, weight, params)), weight, epilogue);
}

void cuda_apply_epilogue(const at::Tensor& y, const EpilogueOperands& epilogue) {
  const c10::cuda::CUDAGuard guard(y.device());
  with_epilogue_arguments(y, epilogue, [&](const ConvEpilogue& arguments) {
    launch_conv_epilogue(element_type_of(y), arguments, c10::cuda::getCurrentCUDAStream());
  });
}

void cuda_add_bias(at::Tensor& y, const at::Tensor& bias) {
  at::DimVector size(static_cast<std::size_t>(y.dim()), 1);
  at::DimVector stride(static_cast<std::size_t>(y.dim()), bias.stride(0));
  size[1] = bias.size(0);
  // Not through the dispatcher, which takes as long as the work itself: y and bias come from it.
  at::cuda::add_(y, at::cuda::as_strided(bias, size, stride));
}

std::tuple<at::Tensor, at::Tensor> cudnn_backward(const char* op, const at::Tensor& grad_output,
                                                  const at::Tensor& input, const at::Tensor& weight,
                                                  const ConvParams& params,
                                                  std::array<bool, 2> wanted,
                                                  const PolicyRequest& policy) {
  const c10::cuda::CUDAGuard guard(input.device());
  return backward(CudnnCall(op, params, policy), grad_output, input, weight, params, wanted);
}

bool cudnn_has_stored_plans() { return !conv::stored_plans().empty(); }

at::Tensor cudnn_stored_forward(const char* op, const at::Tensor& input, const at::Tensor& weight,
                                const ConvParams& params) {
  const c10::cuda::CUDAGuard guard(input.device());
  const StoredCall call(op, params, kNoPolicy);
  const at::Tensor y = forward(call, input, weight, params);
  return call.was_stored() ? y : at::Tensor();
}

std::tuple<at::Tensor, at::Tensor> cudnn_stored_backward(
    const char* op, const at::Tensor& grad_output, const at::Tensor& input,
    const at::Tensor& weight, const ConvParams& params, std::array<bool, 2> wanted) {
  const c10::cuda::CUDAGuard guard(input.device());
  const StoredCall of_input(op, params, kNoPolicy);
  const StoredCall of_weight(op, params, kNoPolicy);
  at::Tensor grad_input;
  at::Tensor grad_weight;
  if (wanted[0]) {
    grad_input = std::get<0>(backward(of_input, grad_output, input, weight, params, {true, false}));
  }
  if (wanted[1]) {
    grad_weight =
        std::get<1>(backward(of_weight, grad_output, input, weight, params, {false, true}));
  }
  return {of_input.was_stored() ? grad_input : at::Tensor(),
          of_weight.was_stored() ? grad_weight : at::Tensor()};
}

EnginePass::EnginePass(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& grad_output, bool of_weight,
                       const ConvParams& params) {
  const c10::cuda::CUDAGuard guard(input.device());
  const PassRecorder recorder(params);
  if (grad_output.has_value()) {
    backward(recorder, *grad_output, input, weight, params, {!of_weight, of_weight});
  } else {
    forward(recorder, input, weight, params);
  }
  operation_ = recorder.operation();
  planned_ = operation_.problem;
}

const at::Tensor& EnginePass::result() const {
  return result_of(operation_.problem.pass, operation_.x, operation_.w, operation_.y);
}

const conv::Problem& EnginePass::problem() const { return operation_.problem; }

conv::GpuKind EnginePass::gpu() const { return gpu_kind(operation_.problem.device); }

EnginePass EnginePass::in_layout(bool channels_last) const {
  const c10::cuda::CUDAGuard guard(operation_.x.device());
  EnginePass converted = *this;
  converted.channels_last_ = channels_last;
  ops::in_layout(channels_last, operation_.problem.pass, operation_.x, operation_.w, operation_.y,
                 [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& y) {
                   converted.planned_ = with_operands(operation_.problem, x, w, y);
                 });
  return converted;
}

std::vector<conv::ListedEngine> EnginePass::list() const {
  const c10::cuda::CUDAGuard guard(operation_.x.device());
  return with_torch_errors(
      kEnginesName, [&] { return conv::list_engines(at::native::getCudnnHandle(), planned_); });
}

EnginePass::Ready EnginePass::build(std::string_view tag) const {
  const c10::cuda::CUDAGuard guard(operation_.x.device());
  // Some engines need the thread to have a CUDA context, which the guard does not make.
  CONVTIME_CUDA_CHECK(cudaSetDevice(operation_.x.get_device()));
  return with_torch_errors(kEnginesName, [&] {
    const conv::EngineTag named = conv::parse_tag(tag);
    std::shared_ptr<conv::Plan> plan =
        conv::build_engine(at::native::getCudnnHandle(), planned_, named.engine);
    const std::int64_t bytes = plan->workspace_bytes();
    return Ready{
        bytes, [plan = std::move(plan), channels_last = channels_last_, operation = operation_] {
          const auto& [problem, x, w, y] = operation;
          const c10::cuda::CUDAGuard guard(x.device());
          const auto run = [&](const at::Tensor& planned_x, const at::Tensor& planned_w,
                               const at::Tensor& planned_y) {
            CachingWorkspace workspace;
            with_torch_errors(kEnginesName, [&] {
              conv::run_plan(*plan, at::native::getCudnnHandle(),
                             operands_of(problem.pass, planned_x, planned_w, planned_y), workspace);
            });
          };
          if (channels_last.has_value()) {
            ops::in_layout(*channels_last, problem.pass, x, w, y, run);
          } else {
            run(x, w, y);
          }
        }};
  });
}

std::function<void()> cudnn_execute_only(const at::Tensor& x, const at::Tensor& w,
                                         const std::optional<at::Tensor>& bias,
                                         const ConvParams& params) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 4 && w.dim() == 4 && w.device() == x.device() &&
                  w.scalar_type() == x.scalar_type(),
              "execute_floor: input and weight must be 4-D, on one GPU and of one dtype");
  const c10::cuda::CUDAGuard guard(x.device());
  // PyTorch's policy, named so that no stored plan takes its place.
  const PolicyRequest pytorchs{.benchmark = at::globalContext().benchmarkCuDNN(), .engine = {}};
  const at::Tensor y = cudnn_forward("execute_floor", x, w, params, pytorchs);
  const conv::PlanKey key =
      key_of(conv::Pass::kFprop, x, w, y, params, CudnnFlags(), PolicyRequest());
  const auto choice = conv::choice_table().find(key);
  TORCH_CHECK(choice != nullptr,
              "execute_floor: input and weight must have cuDNN's layout already: both dense, and "
              "both contiguous or both channels_last");
  cudnnHandle_t handle = at::native::getCudnnHandle();
  std::shared_ptr<conv::Plan> plan = conv::rebuild_plan(handle, key.problem, choice->choice);
  TORCH_CHECK(plan != nullptr, "execute_floor: cuDNN does not build plan ", choice->choice.tag,
              " again from its engine and knobs");
  struct State {
    at::Tensor x, w, y;
    std::shared_ptr<conv::Plan> plan;
    CachingWorkspace workspace;
  };
  auto state = std::make_shared<State>(State{x, w, y, std::move(plan), CachingWorkspace()});
  const conv::Operands operands = operands_of(conv::Pass::kFprop, x, w, y);
  void* const memory = state->workspace.reserve(state->plan->workspace_bytes());
  if (bias.has_value()) {
    return [=, bias = *bias] {
      state->plan->run(handle, operands, memory);
      cuda_add_bias(state->y, bias);
    };
  }
  return [=] { state->plan->run(handle, operands, memory); };
}

}  // namespace convtime::ops
