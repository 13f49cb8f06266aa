#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "core/cuda.h"
#include "core/export.h"
#include "timing/timers/timer.h"

namespace convtime {

/// Measures the time between two CUDA events around a call on one stream. It includes the events'
/// overhead (2 to 3 us on an H200) and, unless the queue is held, the host's gaps. Work on other
/// streams counts only if this stream waits for it.
class CONVTIME_API EventTimer final : public Timer {
 public:
  /// One run() can time at most `capacity` calls; all events are created before sampling.
  EventTimer(cudaStream_t stream, std::size_t capacity);

  void run(std::span<Callable* const> calls) override;
  void collect(std::span<double> seconds) override;
  double tick_seconds() const override { return tick_seconds_; }
  bool queues_calls() const override { return true; }

 private:
  cudaStream_t stream_;
  std::vector<CudaEvent> starts_;
  std::vector<CudaEvent> stops_;
  double tick_seconds_ = 0;
};

}  // namespace convtime
