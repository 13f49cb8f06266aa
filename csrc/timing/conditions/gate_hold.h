#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_event.h"
#include "core/export.h"
#include "timing/conditions/queue_hold.h"

namespace convtime {

/// Holds a stream with a kernel of one thread that spins on a flag in host memory. A plain store of
/// the host opens the gate; the deadline, which the device itself watches, opens it in any case.
class CONVTIME_API GateHold final : public QueueHold {
 public:
  explicit GateHold(cudaStream_t stream);

  void hold(double deadline_seconds) override;
  bool ends_early() const override { return true; }
  bool release() noexcept override;

 private:
  struct State {
    int open;       // written by the host
    int timed_out;  // written by the device
  };
  struct StateTraits {
    using Handle = State*;
    static void release(State* state) noexcept { CONVTIME_CUDA_WARN(cudaFreeHost(state)); }
  };

  cudaStream_t stream_;
  CudaEvent passed_;  // behind the last gate
  UniqueHandle<StateTraits> state_;
};

}  // namespace convtime
