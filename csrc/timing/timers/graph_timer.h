#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/cuda.h"
#include "core/device_allocator.h"
#include "core/export.h"
#include "timing/conditions/cache_flush.h"
#include "timing/timers/device_graph.h"
#include "timing/timers/device_stamps.h"
#include "timing/timers/timer.h"

namespace convtime {

// Timers of calls that are captured in CUDA graphs and replayed, so that host time does not matter.
// run() throws std::runtime_error, with the cause nested in it, for a call that cannot be captured.
// A call's prepare() runs before its graphs are replayed, not before each captured call.

/// The objects and hooks that a graph timer needs from its host program.
struct GraphContext {
  GraphRecorder recorder;
  cudaStream_t stream = nullptr;  ///< the stream on which the recorder's graphs are replayed
  /// See HostHooks::wait.
  std::function<void(const std::function<void()>&)> wait = [](const auto& blocking) { blocking(); };
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
  void collect(std::span<double> seconds) override;
  double tick_seconds() const override;
  bool queues_calls() const override { return true; }

 private:
  struct CapturedCalls {
    std::unique_ptr<DeviceGraph> shorter;
    std::unique_ptr<DeviceGraph> longer;
    std::size_t length_difference = 0;
  };
  struct EventPair {
    CudaEvent start = make_event();
    CudaEvent stop = make_event();

    double seconds() const;
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
  void collect(std::span<double> seconds) override;
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
