#include "timing/factory.h"

#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "timing/batch.h"
#include "timing/clock.h"
#include "timing/conditions/regimes.h"
#include "timing/timers/host_timer.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/cuda.h"
#include "core/synchronize.h"
#include "timing/conditions/cache_flush.h"
#include "timing/conditions/gate_hold.h"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/device/kernels.h"
#include "timing/timers/device_timers.h"
#endif

namespace convtime {
namespace {

/// Return a function that waits until the device is idle, lets other host threads run, and returns
/// when the device was idle. That time is read before the host's locks are acquired again.
std::function<std::int64_t()> make_drain([[maybe_unused]] const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    return [&options] {
      std::int64_t idle_at = 0;
      options.hooks.wait([&] {
        if (options.hooks.await_device) {
          idle_at = options.hooks.await_device();
          return;
        }
        synchronize(options.other_devices);
        idle_at = now_nanoseconds();
      });
      return idle_at;
    };
  }
#endif
  return now_nanoseconds;
}

#ifdef CONVTIME_WITH_CUDA
cudaStream_t stream_of(const TimingOptions& options) {
  return static_cast<cudaStream_t>(options.stream);
}

std::unique_ptr<Timer> make_graph_timer(const TimingOptions& options, std::size_t capacity) {
  if (!options.graph_recorder) {
    throw std::invalid_argument("method 'graph' needs a graph_recorder, got none");
  }
  if (!options.other_devices.empty()) {
    throw std::invalid_argument(
        "method 'graph' captures the work of one device, but the calls use several; use 'kernel'");
  }
  const GraphContext context{options.graph_recorder, stream_of(options), options.hooks,
                             options.allocate};
  if (options.flush.empty()) {
    return std::make_unique<GraphTimer>(context, capacity);
  }
  return std::make_unique<ColdGraphTimer>(context, options.flush, capacity);
}
#endif

}  // namespace

void load_timing_kernels([[maybe_unused]] const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (!options.on_gpu) {
    return;
  }
  (void)timing_kernels();
  for (const int device : options.other_devices) {
    const CurrentDevice current(device);
    (void)timing_kernels();
  }
#endif
}

std::unique_ptr<Timer> make_timer(Method method, const TimingOptions& options,
                                  [[maybe_unused]] std::size_t candidates) {
  switch (method) {
    case Method::kCpu:
      if (!options.on_gpu) {
        return std::make_unique<CpuWorkTimer>();
      }
      return std::make_unique<HostTimer>(HostTimer::Until::kReturn, make_drain(options));
    case Method::kSync:
      return std::make_unique<HostTimer>(HostTimer::Until::kIdle, make_drain(options));
#ifdef CONVTIME_WITH_CUDA
    case Method::kKernel:
      return std::make_unique<KernelTimer>(options.metric, stream_of(options),
                                           options.other_devices, make_drain(options));
    case Method::kEvent:
      if (!options.other_devices.empty()) {
        throw std::invalid_argument(
            "method 'event' sees one stream of one device, but the calls use several devices; use "
            "'kernel', 'sync' or 'auto'");
      }
      return std::make_unique<EventTimer>(stream_of(options), BatchRunner::max_calls(candidates));
    case Method::kGraph:
      return make_graph_timer(options, BatchRunner::max_calls(candidates));
#endif
    default:
      throw std::logic_error(std::string("method '") + to_string(method) +
                             "' has no timer in this build");
  }
}

DeviceTicks device_ticks([[maybe_unused]] const TimingOptions& options) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  DeviceTicks ticks{kUnknown, kUnknown, kUnknown};
#ifdef CONVTIME_WITH_CUDA
  ticks.globaltimer = globaltimer_tick(stream_of(options), options.allocate);
  ticks.events = make_timer(Method::kEvent, options, 1)->tick_seconds();
  try {
    ticks.records = make_timer(Method::kKernel, options, 1)->tick_seconds();
  } catch (const std::runtime_error&) {
    // Without CUPTI, the other tick is still known.
  }
#endif
  return ticks;
}

std::unique_ptr<QueueHold> make_hold([[maybe_unused]] const TimingOptions& options,
                                     [[maybe_unused]] const Timer& timer) {
#ifdef CONVTIME_WITH_CUDA
  if (!timer.queues_calls()) {
    return nullptr;
  }
  switch (options.queue) {
    case Queue::kGate:
      return std::make_unique<GateHold>(stream_of(options));
    case Queue::kSleep:
      return std::make_unique<SleepHold>(stream_of(options));
    case Queue::kNone:
      return nullptr;
  }
#endif
  return nullptr;
}

std::unique_ptr<ClockProbe> make_clock_probe([[maybe_unused]] const TimingOptions& options,
                                             [[maybe_unused]] std::size_t candidates,
                                             [[maybe_unused]] const Timer& timer) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    return std::make_unique<SmClockProbe>(stream_of(options), BatchRunner::max_calls(candidates),
                                          timer.tick_seconds(), options.allocate);
  }
#endif
  return nullptr;
}

std::unique_ptr<RegimeControl> make_regime(const TimingOptions& options, Method method,
                                           double max_clock_hz) {
  if (!options.on_gpu) {
    return nullptr;
  }
  switch (options.regime) {
    case Regime::kAuto:
      return method == Method::kCpu ? nullptr : std::make_unique<AutoRegime>(max_clock_hz);
    case Regime::kBurst:
      return std::make_unique<BurstRegime>(max_clock_hz);
    case Regime::kSustained:
      return std::make_unique<SustainedRegime>();
    case Regime::kAsIs:
      return nullptr;
  }
  return nullptr;
}

std::vector<std::unique_ptr<Callable>> add_conditions(std::span<Callable*> candidates,
                                                      [[maybe_unused]] const TimingOptions& options,
                                                      [[maybe_unused]] Method method,
                                                      ClockProbe* probe) {
  std::vector<std::unique_ptr<Callable>> wrappers;
  for (Callable*& callable : candidates) {
    if (probe != nullptr) {
      callable = wrappers.emplace_back(std::make_unique<ClockedCallable>(*callable, *probe)).get();
    }
#ifdef CONVTIME_WITH_CUDA
    if (!options.flush.empty() && method != Method::kGraph) {  // graphs already contain the flush
      callable =
          wrappers.emplace_back(std::make_unique<ColdCallable>(*callable, options.flush)).get();
    }
#endif
  }
  return wrappers;
}

}  // namespace convtime
