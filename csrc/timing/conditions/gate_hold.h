#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/cuda.h"
#include "core/export.h"
#include "timing/conditions/queue_hold.h"

namespace convtime {

/// Holds a stream with a single-thread kernel that spins on a flag in host memory. A plain store by
/// the host opens the gate. The device itself watches a deadline, which opens the gate in any case.
class CONVTIME_API GateHold final : public QueueHold {
 public:
  /// Creates a gate for a stream of the current device.
  explicit GateHold(cudaStream_t stream);
  ~GateHold() override;
  GateHold(const GateHold&) = delete;
  GateHold& operator=(const GateHold&) = delete;

  void hold(double deadline_seconds) override;
  bool ends_early() const override { return true; }
  bool release() noexcept override;

 private:
  struct Gate;
  class Gates;

  cudaStream_t stream_;
  int device_;
  std::unique_ptr<Gate> gate_;
};

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
