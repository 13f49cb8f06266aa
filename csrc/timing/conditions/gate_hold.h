#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/export.h"
#include "timing/conditions/queue_hold.h"

namespace convtime {

/// Holds a stream with a kernel of one thread that spins on a flag in host memory. A plain store of
/// the host opens the gate; the deadline, which the device itself watches, opens it in any case.
class CONVTIME_API GateHold final : public QueueHold {
 public:
  /// For a stream of the current device.
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

}  // namespace convtime
