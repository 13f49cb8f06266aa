#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/cuda.h"
#include "core/device_allocator.h"
#include "core/device_memory.h"
#include "core/export.h"
#include "timing/conditions/cache_flush.h"
#include "timing/host_hooks.h"
#include "timing/timers/device_graph.h"
#include "timing/timers/timer.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_session.h"

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

/// Measures the device's own time for the kernels, copies and memsets of a call, from CUPTI's
/// activity records: without launch latency or overhead of the timing itself.
class CONVTIME_API KernelTimer final : public Timer {
 public:
  /// For calls that use the current device and `other_devices`. `drain` returns when all of these
  /// devices are idle. Throws std::runtime_error if CUPTI cannot be used.
  KernelTimer(Metric metric, cudaStream_t stream, std::vector<int> other_devices,
              std::function<void()> drain);

  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t calls) override;
  void pause() override { session_.pause(); }
  void resume() override { session_.resume(); }
  double tick_seconds() const override { return tick_seconds_; }
  void isolate() override { isolated_ = true; }
  bool queues_calls() const override { return true; }

 private:
  Metric metric_;
  std::vector<int> other_devices_;
  std::function<void()> drain_;
  bool isolated_ = false;
  CuptiSession session_;
  double tick_seconds_ = 0;
  std::vector<Window> windows_;
};

/// Measures the time between two CUDA events around a call on one stream. It includes the events'
/// overhead (2 to 3 us on an H200) and, unless the queue is held, the host's gaps. Work on other
/// streams counts only if this stream waits for it.
class CONVTIME_API EventTimer final : public Timer {
 public:
  /// One run() can time at most `capacity` calls; all events are created before sampling.
  EventTimer(cudaStream_t stream, std::size_t capacity);

  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t calls) override;
  double tick_seconds() const override { return tick_seconds_; }
  bool queues_calls() const override { return true; }

 private:
  cudaStream_t stream_;
  std::vector<EventPair> events_;
  double tick_seconds_ = 0;
};

/// Times at which a device reached points in its work, by its own clock. A stamp is a tiny kernel
/// that appends to a list, so it can be captured in a graph and replayed.
class CONVTIME_API DeviceStamps {
 public:
  /// Supports at most `capacity` stamps between two take(), on `stream` or replayed there.
  DeviceStamps(cudaStream_t stream, std::size_t capacity, const DeviceAllocator& allocate);

  /// Enqueue an opening or a closing stamp. The opening stamp reads the clock at its end, the
  /// closing one at its start. An opening stamp ends at a random phase of the clock's tick, which
  /// makes the time to the closing stamp correct on average.
  void open(cudaStream_t stream) { stamp(true, stream); }
  void close(cudaStream_t stream) { stamp(false, stream); }

  /// Wait for the stream and return the stamps since the last take(), in nanoseconds.
  std::vector<std::uint64_t> take();

  double tick_seconds() const { return tick_seconds_; }

 private:
  void stamp(bool open, cudaStream_t stream);

  cudaStream_t stream_;
  std::size_t capacity_;
  double tick_seconds_;
  double open_cycles_;    ///< minimum duration of an opening stamp
  double random_cycles_;  ///< maximum random extension
  DeviceMemory<std::uint64_t> count_and_stamps_;
};

// Timers of calls that are captured in CUDA graphs and replayed, so that host time does not matter.
// run() throws std::runtime_error, with the cause nested in it, for a call that cannot be captured.
// A call's prepare() runs before its graphs are replayed, not before each captured call.

/// The objects and hooks that a graph timer needs from its host program.
struct GraphContext {
  GraphRecorder recorder;
  cudaStream_t stream = nullptr;  ///< the stream on which the recorder's graphs are replayed
  HostHooks hooks{};
  DeviceAllocator allocate{};
};

/// Times calls back to back: the difference between a long graph and a short one, divided by the
/// difference of their lengths. This cancels the cost of launching a graph and of the events around
/// it. The result includes the call and the gap to the next one.
class CONVTIME_API GraphTimer final : public Timer {
 public:
  /// One run() can time at most `capacity` calls.
  GraphTimer(GraphContext context, std::size_t capacity);

  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t calls) override;
  double tick_seconds() const override;
  bool queues_calls() const override { return true; }

 private:
  struct CapturedCalls {
    std::unique_ptr<DeviceGraph> shorter;
    std::unique_ptr<DeviceGraph> longer;
    std::size_t length_difference = 0;
  };
  struct Sample {
    EventPair shorter;
    EventPair longer;
    std::size_t length_difference = 0;
  };

  CapturedCalls capture(Callable& callable);
  double estimate_seconds(DeviceGraph& graph, std::size_t length);
  void replay(DeviceGraph& graph, const EventPair& around);

  GraphContext context_;
  double event_tick_seconds_;
  std::map<Callable*, CapturedCalls> captured_;
  std::vector<Sample> samples_;
};

/// Times calls that each follow a flush: the time between two stamps of the device's clock,
/// averaged over the calls of a graph. The result includes the call and the overhead of the stamps.
class CONVTIME_API ColdGraphTimer final : public Timer {
 public:
  /// See GraphTimer.
  ColdGraphTimer(GraphContext context, std::vector<FlushBuffer> flush, std::size_t capacity);

  void run(std::span<Callable* const> calls) override;
  Collection collect(std::size_t calls) override;
  double tick_seconds() const override;
  bool queues_calls() const override { return true; }

 private:
  std::unique_ptr<DeviceGraph> capture(Callable& callable);

  GraphContext context_;
  std::vector<FlushBuffer> flush_;
  std::map<Callable*, std::unique_ptr<DeviceGraph>> captured_;
  DeviceStamps stamps_;
};

}  // namespace convtime
