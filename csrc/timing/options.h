#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/device_allocator.h"
#include "core/enum_names.h"
#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/conditions/regime.h"
#include "timing/host_hooks.h"
#include "timing/judge/stop_rule.h"
#include "timing/supervision.h"
#include "timing/timers/device_graph.h"
#include "timing/trace/device_activity.h"

namespace convtime {

enum class Method {
  /// For work on a GPU kKernel or, if that is not possible, kEvent (kSync for several GPUs); kCpu
  /// otherwise.
  kAuto,
  kKernel,  ///< KernelTimer
  kEvent,   ///< EventTimer
  kGraph,   ///< GraphTimer, or ColdGraphTimer
  kSync,    ///< HostTimer until the device is idle
  kCpu,     ///< HostTimer until the call returns; CpuWorkTimer for work on the CPU
};

enum class Queue {
  kGate,   ///< GateHold
  kSleep,  ///< SleepHold
  kNone,
};
constexpr auto names_of(Method /*all*/) {
  return std::array{"auto", "kernel", "event", "graph", "sync", "cpu"};
}

constexpr auto names_of(Queue /*all*/) { return std::array{"gate", "sleep", "none"}; }

struct TimingOptions {
  Method method = Method::kAuto;
  Metric metric = Metric::kBusy;  ///< for Method::kKernel
  Queue queue = Queue::kGate;
  /// Whether the work runs on the current CUDA device (otherwise on the CPU). Must be false in a
  /// build without CUDA, and if no device is found.
  bool on_gpu = false;
  /// The cudaStream_t to which the candidates issue their work; null is the default stream.
  void* stream = nullptr;
  /// The buffers that flush the L2 caches before each call, one per device; they also determine the
  /// lines that the call finds there. If empty, each call finds the cache as the previous call left
  /// it.
  std::vector<FlushBuffer> flush{};
  /// Devices that the calls use, in addition to the current one.
  std::vector<int> other_devices{};
  /// The recorder that kGraph captures with; required by kGraph.
  GraphRecorder graph_recorder{};
  /// Creates the calibration reference of kEvent and kGraph: a call that issues one kernel of a few
  /// microseconds to `stream`, or to the stream from which a graph is recorded. Preferably a kernel
  /// of the library whose calls are timed: after a flush, the first fetch of its code is part of
  /// the correction. If empty, convtime's own kernel is used.
  std::function<std::unique_ptr<Callable>()> calibration_reference{};
  /// Allocates the timing's own device memory.
  DeviceAllocator allocate{};
  Regime regime = Regime::kAuto;
  Warmup warmup{};
  StopRule stop{};
  HostHooks hooks{};
  Supervision supervision{};
};

}  // namespace convtime
