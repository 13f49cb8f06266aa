#include "ops/timing/graph_recorder.h"

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

namespace convtime::ops {
namespace {

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

}  // namespace

GraphRecorder torch_graph_recorder() { return record; }

}  // namespace convtime::ops
