#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_event.h"
#include "core/export.h"
#include "timing/conditions/queue_hold.h"

namespace convtime {

/// Holds a stream with a single-thread kernel that sleeps for a fixed time, measured with the GPU's
/// %globaltimer. It needs no memory that host and device share, and cannot be ended early.
class CONVTIME_API SleepHold final : public QueueHold {
 public:
  explicit SleepHold(cudaStream_t stream);

  void hold(double seconds) override;
  bool ends_early() const override { return false; }
  bool release() noexcept override;

 private:
  cudaStream_t stream_;
  CudaEvent awake_;
};

}  // namespace convtime
