#include "ops/timing/torch_services.h"

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <kineto/libkineto.h>

#include <utility>

#include "timing/trace/cupti_session.h"

namespace convtime::ops {
namespace {

/// Excludes the caller's Python dispatch modes (e.g. FakeTensorMode), so that they do not see the
/// reference's operators.
class WithoutModes {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

class Relu final : public Callable {
 public:
  void call() override {
    const WithoutModes guard;
    const c10::InferenceMode no_autograd;
    result_ = at::relu(input_);
  }
  void discard_result() override { result_.reset(); }

 private:
  /// Takes 2 to 4 us on an H200: long enough to hide the launch of the following work.
  static constexpr std::int64_t kElements = 1 << 20;

  static at::Tensor make_input() {
    const WithoutModes guard;
    return at::zeros({kElements}, at::device(at::kCUDA).dtype(at::kFloat));
  }

  at::Tensor input_ = make_input();
  at::Tensor result_;
};

class TorchGraph final : public DeviceGraph {
 public:
  explicit TorchGraph(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

template <typename Function>
void attempt(Function&& function) noexcept {
  try {
    function();
  } catch (const std::exception&) {  // nothing to clean up
    (void)cudaGetLastError();
  }
}

/// Drops PyTorch's warnings: for a failed capture, they repeat its error.
class WithoutWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// End a failed capture and release the memory that PyTorch reserved for it. The PyTorch version
/// determines which parts of this a CUDAGraph does itself.
void abandon(std::unique_ptr<at::cuda::CUDAGraph> graph, at::cuda::MempoolId_t pool) noexcept {
  const WithoutWarnings silent;
  attempt([&] { graph->capture_end(); });
  graph.reset();
  const c10::DeviceIndex device = c10::cuda::current_device();
  attempt([&] {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  });
  attempt([&] {
    at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool);
    at::getHostAllocator(at::kCUDA)->release_pool(pool);
  });
  // In PyTorch 2.11, a failed capture leaves the random number generator waiting for the end of the
  // capture; a subsequent successful capture resets it.
  attempt([] {
    at::cuda::CUDAGraph other;
    other.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    at::zeros({1}, at::device(at::kCUDA));
    other.capture_end();
  });
}

std::unique_ptr<DeviceGraph> record(const std::function<void(void* stream)>& work) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    work(stream.stream());
    graph->capture_end();
  } catch (...) {
    abandon(std::move(graph), pool);
    throw;
  }
  return std::make_unique<TorchGraph>(std::move(graph));
}

/// Return true from the warm-up of a profile until the caller takes its records, regardless of who
/// started it.
bool kineto_is_active() {
  libkineto::LibkinetoApi& kineto = libkineto::api();
  return kineto.isProfilerInitialized() && kineto.activityProfiler().isActive();
}

[[maybe_unused]] const bool known_to_the_timing_layer = [] {
  set_profiler_check(kineto_is_active);
  return true;
}();

}  // namespace

std::unique_ptr<Callable> torch_calibration_reference() { return std::make_unique<Relu>(); }

GraphRecorder torch_graph_recorder() { return record; }

std::shared_ptr<void> torch_device_memory(std::size_t bytes) {
  auto memory =
      std::make_shared<c10::DataPtr>(c10::cuda::CUDACachingAllocator::get()->allocate(bytes));
  void* const data = memory->get();
  return {std::move(memory), data};
}

}  // namespace convtime::ops
