#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "core/cuda.h"
#include "core/device_memory.h"
#include "core/export.h"
#include "timing/conditions/clock_probe.h"

namespace convtime {

/// Reads the multiprocessors' clock with tiny kernels on a stream that read %globaltimer and
/// clock64() together; needs neither NVML nor privileges.
class CONVTIME_API SmClockProbe final : public ClockProbe {
 public:
  /// Supports at most `capacity` calls between two collect(). `tick_seconds` is the tick of the
  /// clock that times the calls: they start at random phases of the tick.
  SmClockProbe(cudaStream_t stream, std::size_t capacity, double tick_seconds,
               const DeviceAllocator& allocate = {});

  void stamp() override;
  void finish() override;
  void forget() override { count_ = 0; }
  void pace() override;
  double idle_clock_hz() override;
  void collect(std::span<double> clocks_hz) override;

 private:
  cudaStream_t stream_;
  std::size_t capacity_;
  std::size_t count_ = 0;  // groups since the last collect()
  DeviceMemory<ClockStamp> stamps_;
  double random_cycles_;  ///< maximum random extension of a stamp
  CudaEvent last_pace_;
  CudaEvent pace_before_;
};

/// Return the maximum rate of the current device's multiprocessor clock. Queried once per device,
/// because the driver is slow to answer.
CONVTIME_API double max_sm_clock_hz();

}  // namespace convtime
