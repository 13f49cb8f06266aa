#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "core/device_allocator.h"
#include "core/export.h"
#include "timing/timers/timer.h"

namespace convtime {

/// The device clocks from which times are read.
enum class DeviceClock { kGlobalTimer, kEvents, kRecords };

/// Return the step of the current device's clock in seconds. `measure` is called once per device
/// and clock in a process. Its exceptions propagate, and the next call measures again.
CONVTIME_API double device_tick(DeviceClock clock, const std::function<double()>& measure);

/// Return the step of a timer's seconds, measured with kernels of various durations on `stream`,
/// `batch` kernels at a time.
CONVTIME_API double measure_tick(Timer& timer, cudaStream_t stream, std::size_t batch);

/// Return the range of a random delay that makes the following work start at a uniformly
/// distributed phase of a tick. The delay is in cycles of the highest clock, and longer at lower
/// clocks. A range of few ticks is then uneven by a share of the tick, which only matters for
/// coarse clocks.
inline double phase_range_seconds(double tick_seconds) {
  constexpr double kFineTickSeconds = 100e-9;
  return (tick_seconds <= kFineTickSeconds ? 2 : 8) * tick_seconds;
}

/// Return the step of %globaltimer.
CONVTIME_API double globaltimer_tick(cudaStream_t stream, const DeviceAllocator& allocate);

}  // namespace convtime
