#include <torch/library.h>

#ifdef CONVTIME_WITH_CUDA
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdint>
#include <tuple>

#include "kernels/known_duration/known_duration.h"
#include "timing/conditions/cache_flush.h"
#endif

namespace convtime::ops {
namespace {

#ifdef CONVTIME_WITH_CUDA
/// A longer kernel would look like a hanging GPU.
constexpr std::int64_t kMaxNanoseconds = 10'000'000'000;
constexpr std::int64_t kMaxCycles = 20'000'000'000;
constexpr std::int64_t kMaxBlocks = 65'535;
constexpr std::int64_t kMaxThreads = 1024;

void check_range(const char* op, const char* what, std::int64_t value, std::int64_t low,
                 std::int64_t high) {
  TORCH_CHECK_VALUE(low <= value && value <= high, op, ": ", what, " must be between ", low,
                    " and ", high, ", got ", value);
}

void check_gpu(const char* op) {
  TORCH_CHECK(at::cuda::is_available(), op, ": needs a CUDA device, but none is available");
}

at::Tensor empty_stamps(at::IntArrayRef shape) {
  return at::empty(shape, at::device(at::kCUDA).dtype(at::kLong));
}

at::Tensor spin_ns(std::int64_t nanoseconds, std::int64_t blocks, std::int64_t threads) {
  check_gpu("spin_ns");
  check_range("spin_ns", "nanoseconds", nanoseconds, 0, kMaxNanoseconds);
  check_range("spin_ns", "blocks", blocks, 1, kMaxBlocks);
  check_range("spin_ns", "threads", threads, 1, kMaxThreads);
  at::Tensor stamps = empty_stamps({blocks, 2});
  launch_spin(static_cast<std::uint64_t>(nanoseconds), static_cast<unsigned>(blocks),
              static_cast<unsigned>(threads), stamps.mutable_data_ptr<std::int64_t>(),
              at::cuda::getCurrentCUDAStream());
  return stamps;
}

void sleep_cycles(std::int64_t cycles) {
  check_gpu("sleep_cycles");
  check_range("sleep_cycles", "cycles", cycles, 0, kMaxCycles);
  launch_sleep(static_cast<std::uint64_t>(cycles), at::cuda::getCurrentCUDAStream());
}

void flush_l2(bool clean) {
  check_gpu("flush_l2");
  const L2Lines leaves = clean ? L2Lines::kClean : L2Lines::kDirty;
  const std::size_t bytes = flush_buffer_bytes(c10::cuda::current_device(), leaves);
  const at::DataPtr buffer = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  FlushBuffer touched{buffer.get(), bytes};
  touched.leaves = leaves;
  flush(touched, at::cuda::getCurrentCUDAStream());
}

at::Tensor read_clocks() {
  check_gpu("read_clocks");
  at::Tensor clocks = empty_stamps({3});
  launch_read_clocks(clocks.mutable_data_ptr<std::int64_t>(), at::cuda::getCurrentCUDAStream());
  return clocks;
}

std::tuple<at::Tensor, at::Tensor> copy_stamped(const at::Tensor& input) {
  check_gpu("copy_stamped");
  constexpr std::size_t kAlignment = 16;
  TORCH_CHECK_VALUE(
      input.is_cuda() && input.is_contiguous() && input.nbytes() > 0 &&
          input.nbytes() % kAlignment == 0 &&
          reinterpret_cast<std::uintptr_t>(input.const_data_ptr()) % kAlignment == 0,
      "copy_stamped: input must be a contiguous CUDA tensor whose size and address are "
      "multiples of 16 bytes, got ",
      input.nbytes(), " bytes on ", input.device());
  const c10::cuda::CUDAGuard guard(input.device());
  at::Tensor output = at::empty_like(input);
  at::Tensor stamps = empty_stamps({copy_blocks(input.nbytes()), 2});
  launch_copy(input.const_data_ptr(), output.mutable_data_ptr(), input.nbytes(),
              stamps.mutable_data_ptr<std::int64_t>(), at::cuda::getCurrentCUDAStream());
  return {output, stamps};
}
#else
void refuse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  const std::string& name = op.operator_name().name;
  TORCH_CHECK(false, name.substr(name.rfind(':') + 1),
              ": needs a CUDA device, but this torch was built without CUDA");
}
#endif

}  // namespace

TORCH_LIBRARY_IMPL(convtime, CompositeExplicitAutograd, library) {
#ifdef CONVTIME_WITH_CUDA
  library.impl("spin_ns", spin_ns);
  library.impl("sleep_cycles", sleep_cycles);
  library.impl("flush_l2", flush_l2);
  library.impl("read_clocks", read_clocks);
  library.impl("copy_stamped", copy_stamped);
#else
  for (const char* const op :
       {"spin_ns", "sleep_cycles", "flush_l2", "read_clocks", "copy_stamped"}) {
    library.impl(op, torch::CppFunction::makeFromBoxedFunction<refuse>());
  }
#endif
}

}  // namespace convtime::ops
