#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/cache_flush.h"
#include "timing/conditions/regime.h"
#include "timing/judge/stop_rule.h"
#include "timing/sampler.h"
#include "timing/timers/device_graph.h"

namespace convtime {

enum class Method {
  kAuto,    ///< for work on a GPU kKernel, or kEvent where that is not possible; kCpu otherwise
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
  Queue queue = Queue::kGate;
  /// Whether the work runs on the current CUDA device (else on the CPU). In a build without CUDA,
  /// and where no device is found, only false is possible.
  bool on_gpu = false;
  /// The cudaStream_t that the candidates issue their work to; null is the default stream.
  void* stream = nullptr;
  /// Where to write before each call so that it finds nothing of its data in the L2 caches, a
  /// buffer a device. Without one, each call finds the cache as the last one left it.
  std::vector<FlushBuffer> flush{};
  /// Devices beside the current one that the calls use.
  std::vector<int> other_devices{};
  /// What kGraph captures with; it cannot be used without.
  GraphRecorder graph_recorder{};
  /// What kEvent and kGraph are calibrated with (CalibrationConditions::reference).
  std::function<std::unique_ptr<Callable>()> calibration_reference{};
  /// Why the caller knows that CUPTI is taken (another tool's session), which is of no account
  /// where tools share it; empty otherwise.
  std::string kernel_unavailable{};
  Regime regime = Regime::kAsIs;
  Warmup warmup{};
  StopRule stop{};
  HostHooks hooks{};
};

/// Samples of several candidates, with the method that was really used, and why.
struct Timing {
  SamplerResult samples;
  Method method = Method::kAuto;
  std::string method_reason;
  Queue queue = Queue::kNone;
  std::string queue_reason;
  Regime regime = Regime::kAsIs;
  std::string regime_reason;
  /// For kEvent and kGraph: what was subtracted from each of raw_seconds, [candidate][round], to
  /// give the samples; 0, and no raw_seconds, where the method's own cost is not known.
  double overhead_seconds = 0;
  std::vector<std::vector<double>> raw_seconds;
  /// For kKernel, [candidate][round]: seconds from the first start to the last end.
  std::vector<std::vector<double>> spans;
  /// For kKernel, [candidate]: what the device did.
  std::vector<std::vector<ActivityColumn>> activities;
  /// The highest rate of the device's clock, in hertz; 0 without a GPU.
  double max_clock_hertz = 0;
};

/// Why kKernel cannot be used in this build or process; empty where it can.
CONVTIME_API std::string kernel_method_unavailable();

/// Times the candidates against each other, interleaved (see Sampler).
/// Throws std::invalid_argument for options that contradict each other, std::runtime_error for
/// failures of CUDA, and whatever a candidate throws.
CONVTIME_API Timing time_candidates(std::span<Callable* const> candidates,
                                    const TimingOptions& options);

/// Whether this build and this machine can run work on a GPU.
CONVTIME_API bool cuda_available();

/// One operation's samples in seconds, for programs without Python.
struct CONVTIME_API Samples {
  std::vector<double> seconds;
  Method method = Method::kAuto;
  Queue queue = Queue::kNone;
  Regime regime = Regime::kAsIs;
  std::string regime_reason;  ///< why it is not the one asked for; empty where it is

  double median() const;
};

/// "12.3 us (median of 84, 95 % interval 12.2 .. 12.4 us, event, queue sleep, burst)"
CONVTIME_API std::ostream& operator<<(std::ostream& out, const Samples& samples);

/// Times one operation, on the GPU's default stream where there is a GPU, else on the CPU.
CONVTIME_API Samples time_op(std::function<void()> operation);
CONVTIME_API Samples time_op(std::function<void()> operation, const TimingOptions& options);

}  // namespace convtime
