#include <cstdint>

#include "core/device_clocks.cuh"
#include "timing/conditions/gate_hold.h"

namespace convtime {
namespace {

__global__ void gate_kernel(const volatile int* open, volatile int* timed_out,
                            std::uint64_t deadline_ns) {
  const std::uint64_t start = globaltimer_ns();
  while (*open == 0) {
    if (globaltimer_ns() - start >= deadline_ns) {
      *timed_out = 1;
      __threadfence_system();
      return;
    }
  }
}

}  // namespace

GateHold::GateHold(cudaStream_t stream)
    : stream_(stream), passed_(make_event(cudaEventDisableTiming)) {
  void* state = nullptr;
  CONVTIME_CUDA_CHECK(cudaHostAlloc(&state, sizeof(State), cudaHostAllocMapped));
  state_ = UniqueHandle<StateTraits>(static_cast<State*>(state));
  *state_.get() = {1, 0};
}

void GateHold::hold(double deadline_seconds) {
  // The last gate's kernel may still be about to see that it is open. Whatever came behind it need
  // not be waited for.
  CONVTIME_CUDA_CHECK(cudaEventSynchronize(passed_.get()));
  *state_.get() = {0, 0};
  gate_kernel<<<1, 1, 0, stream_>>>(&state_.get()->open, &state_.get()->timed_out,
                                    static_cast<std::uint64_t>(deadline_seconds * 1e9));
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    state_.get()->open = 1;
    CONVTIME_CUDA_CHECK(status);
  }
  CONVTIME_CUDA_CHECK(cudaEventRecord(passed_.get(), stream_));
}

bool GateHold::release() noexcept {
  volatile State& state = *state_.get();
  const bool held = state.timed_out == 0;
  state.open = 1;
  return held;
}

}  // namespace convtime
