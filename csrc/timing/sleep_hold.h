#pragma once

#include <cuda_runtime_api.h>

#include "core/export.h"
#include "timing/cuda_event.h"
#include "timing/queue_hold.h"

namespace convtime {

/// Holds a stream with a kernel of one thread that sleeps until a deadline of the GPU's own
/// %globaltimer: it ends by itself, whatever the host does.
class CONVTIME_API SleepHold final : public QueueHold {
 public:
  explicit SleepHold(cudaStream_t stream);

  void hold(double seconds) override;
  bool released() const override;

 private:
  cudaStream_t stream_;
  CudaEvent awake_;
};

}  // namespace convtime
