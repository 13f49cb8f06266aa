#include "timing/conditions/gate_hold.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "timing/device/kernels.h"

namespace convtime {

/// A flag in host memory, and an event after the last kernel that spun on it.
struct GateHold::Gate {
  struct State {
    int open;       // written by the host
    int timed_out;  // written by the device
  };
  struct StateTraits {
    using Handle = State*;
    static void release(State* state) noexcept { CONVTIME_CUDA_WARN(cudaFreeHost(state)); }
  };

  Gate() : passed(make_event(cudaEventDisableTiming)) {
    void* memory = nullptr;
    CONVTIME_CUDA_CHECK(cudaHostAlloc(&memory, sizeof(State), cudaHostAllocMapped));
    state = UniqueHandle<StateTraits>(static_cast<State*>(memory));
    *state.get() = {1, 0};
  }

  CudaEvent passed;
  UniqueHandle<StateTraits> state;
};

/// The process's unused gates, by device. They are kept for the life of the process: creating one
/// pins host memory, and freeing one waits for the device.
class GateHold::Gates {
 public:
  static Gates& instance() {
    static auto* const gates = new Gates;  // never destroyed: CUDA may end first
    return *gates;
  }

  std::unique_ptr<Gate> take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Gate>>& unused = unused_[device];
    if (unused.empty()) {
      return std::make_unique<Gate>();
    }
    std::unique_ptr<Gate> gate = std::move(unused.back());
    unused.pop_back();
    return gate;
  }

  void give_back(int device, std::unique_ptr<Gate> gate) {
    const std::lock_guard lock(mutex_);
    unused_[device].push_back(std::move(gate));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<Gate>>> unused_;
};

GateHold::GateHold(cudaStream_t stream)
    : stream_(stream), device_(current_device()), gate_(Gates::instance().take(device_)) {}

GateHold::~GateHold() { Gates::instance().give_back(device_, std::move(gate_)); }

void GateHold::hold(double deadline_seconds) {
  // The last gate's kernel may not have seen yet that the gate is open. The work after it need not
  // be waited for.
  CONVTIME_CUDA_CHECK(cudaEventSynchronize(gate_->passed.get()));
  Gate::State& state = *gate_->state.get();
  state = {0, 0};
  try {
    timing_kernels().gate.launch(1, 1, 0, stream_, &state.open, &state.timed_out,
                                 static_cast<std::uint64_t>(deadline_seconds * 1e9));
  } catch (...) {
    state.open = 1;
    throw;
  }
  CONVTIME_CUDA_CHECK(cudaEventRecord(gate_->passed.get(), stream_));
}

bool GateHold::release() noexcept {
  volatile Gate::State& state = *gate_->state.get();
  const bool held = state.timed_out == 0;
  state.open = 1;
  return held;
}

SleepHold::SleepHold(cudaStream_t stream)
    : stream_(stream), awake_(make_event(cudaEventDisableTiming)) {}

void SleepHold::hold(double seconds) {
  timing_kernels().sleep.launch(1, 1, 0, stream_, static_cast<std::uint64_t>(seconds * 1e9));
  CONVTIME_CUDA_CHECK(cudaEventRecord(awake_.get(), stream_));
}

bool SleepHold::release() noexcept {
  const bool asleep = cudaEventQuery(awake_.get()) == cudaErrorNotReady;
  (void)cudaGetLastError();  // "not ready" is not an error: the next check must not find it
  return asleep;
}

}  // namespace convtime
