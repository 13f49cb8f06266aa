#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device_allocator.h"
#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/conditions/regime.h"
#include "timing/conditions/warmup.h"
#include "timing/host_hooks.h"
#include "timing/judge/stop_rule.h"
#include "timing/supervision.h"
#include "timing/timers/device_graph.h"
#include "timing/trace/device_activity.h"

namespace convtime {

enum class Method {
  /// For work on a GPU kKernel or, where that is not possible, kEvent (kSync for several GPUs);
  /// kCpu
  /// otherwise.
  kAuto,
  kKernel,  ///< KernelTimer
  kEvent,   ///< EventTimer
  kGraph,   ///< GraphTimer, or ColdGraphTimer
  kSync,    ///< SyncTimer
  kCpu,     ///< CpuTimer
};

enum class Queue {
  kGate,   ///< GateHold
  kSleep,  ///< SleepHold
  kNone,
};

CONVTIME_API const char* to_string(Method method);
CONVTIME_API const char* to_string(Queue queue);
/// Throw std::invalid_argument with the allowed names.
CONVTIME_API Method method_from_string(const std::string& name);
CONVTIME_API Queue queue_from_string(const std::string& name);

struct TimingOptions {
  Method method = Method::kAuto;
  Metric metric = Metric::kBusy;  ///< of Method::kKernel
  Queue queue = Queue::kGate;
  /// Whether the work runs on the current CUDA device (else on the CPU). In a build without CUDA,
  /// and where no device is found, only false is possible.
  bool on_gpu = false;
  /// The cudaStream_t that the candidates issue their work to; null is the default stream.
  void* stream = nullptr;
  /// What evicts a call's data from the L2 caches before it, and what it then finds there; a buffer
  /// for each device. Without one, each call finds the cache as the last one left it.
  std::vector<FlushBuffer> flush{};
  /// Devices beside the current one that the calls use.
  std::vector<int> other_devices{};
  /// What kGraph captures with; it cannot be used without.
  GraphRecorder graph_recorder{};
  /// Makes what kEvent and kGraph are calibrated with: a call that issues one kernel of a few
  /// microseconds to `stream`, or to the one that a graph is recorded from. Best a kernel of the
  /// library whose calls are timed: after a flush, the first fetch of its code is part of what is
  /// corrected. Without it, a kernel of convtime's own.
  std::function<std::unique_ptr<Callable>()> calibration_reference{};
  /// Where the timing's own memory on the device comes from.
  DeviceAllocator allocate{};
  Regime regime = Regime::kAuto;
  Warmup warmup{};
  StopRule stop{};
  HostHooks hooks{};
  Supervision supervision{};
};

}  // namespace convtime
