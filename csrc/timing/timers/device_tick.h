#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "core/device_allocator.h"
#include "core/export.h"
#include "timing/timers/timer.h"

namespace convtime {

/// A clock of a device that times are read from.
enum class DeviceClock { kGlobalTimer, kEvents, kRecords };

/// The step of the current device's clock in seconds. `measure` is called once for each device and
/// clock of the process; what it throws passes through, and it is called again the next time.
CONVTIME_API double device_tick(DeviceClock clock, const std::function<double()>& measure);

/// The step of a timer's seconds, from kernels of various durations on `stream`, of which the timer
/// is given `batch` at a time.
CONVTIME_API double measure_tick(Timer& timer, cudaStream_t stream, std::size_t batch);

/// Over how long a random delay makes whatever follows begin at any phase of a tick alike. The
/// delay is in cycles of the highest clock, and longer at lower ones: a range of few ticks is then
/// uneven by a share of the tick, which matters for coarse clocks alone.
inline double phase_range_seconds(double tick_seconds) {
  constexpr double kFineTickSeconds = 100e-9;
  return (tick_seconds <= kFineTickSeconds ? 2 : 8) * tick_seconds;
}

/// The step of %globaltimer.
CONVTIME_API double globaltimer_tick(cudaStream_t stream, const DeviceAllocator& allocate);

}  // namespace convtime
