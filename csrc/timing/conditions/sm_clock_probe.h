#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "core/cuda_event.h"
#include "core/device_memory.h"
#include "core/export.h"
#include "timing/conditions/clock_probe.h"

namespace convtime {

/// Reads the multiprocessors' clock by tiny kernels on a stream, each of which reads %globaltimer
/// and clock64() together; needs neither NVML nor a privilege.
class CONVTIME_API SmClockProbe final : public ClockProbe {
 public:
  /// For at most `capacity` calls between two collect(). `tick_seconds` is of the clock that calls
  /// are timed by: they begin at random phases of it.
  SmClockProbe(cudaStream_t stream, std::size_t capacity, double tick_seconds,
               const DeviceAllocator& allocate = {});

  void stamp() override;
  void finish() override;
  void forget() override { count_ = 0; }
  void pace() override;
  double idle_clock_hz() override;
  void collect(std::span<double> clocks_hz) override;

 private:
  std::vector<ClockStamp> read_stamps(std::size_t count);

  cudaStream_t stream_;
  std::size_t capacity_;
  std::size_t count_ = 0;  // groups since the last collect()
  DeviceMemory<ClockStamp> stamps_;
  double random_cycles_;  ///< up to which a stamp takes longer
  CudaEvent last_pace_;
  CudaEvent pace_before_;
};

/// The highest rate of the current device's multiprocessor clock. Asked once for each device, since
/// the driver takes long to answer.
CONVTIME_API double max_sm_clock_hz();

}  // namespace convtime
