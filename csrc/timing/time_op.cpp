#include "timing/time_op.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "core/enum_names.h"
#include "timing/conditions/clock_probe.h"
#include "timing/judge/statistics.h"
#include "timing/timers/host_timer.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/synchronize.h"
#include "timing/calibration.h"
#include "timing/conditions/gate_hold.h"
#include "timing/conditions/sleep_hold.h"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/timers/event_timer.h"
#include "timing/timers/graph_timer.h"
#include "timing/timers/kernel_timer.h"
#include "timing/trace/cupti_session.h"
#endif

namespace convtime {
namespace {

constexpr std::array kMethods = {Method::kAuto,  Method::kKernel, Method::kEvent,
                                 Method::kGraph, Method::kSync,   Method::kCpu};
constexpr std::array kQueues = {Queue::kGate, Queue::kSleep, Queue::kNone};

/// What waits until the device is idle, letting other host threads on.
std::function<void()> make_drain(const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    return [&options] { options.hooks.wait([&] { synchronize(options.other_devices); }); };
  }
#endif
  (void)options;
  return [] {};
}

#ifdef CONVTIME_WITH_CUDA
std::unique_ptr<Timer> make_graph_timer(const TimingOptions& options, std::size_t capacity) {
  if (!options.graph_recorder) {
    throw std::invalid_argument("method 'graph' needs something to record graphs with, got none");
  }
  if (!options.other_devices.empty()) {
    throw std::invalid_argument(
        "method 'graph' captures the work of one device, and the calls use several; use 'kernel'");
  }
  const GraphContext context{options.graph_recorder, static_cast<cudaStream_t>(options.stream),
                             options.hooks.wait};
  if (options.flush.empty()) {
    return std::make_unique<GraphTimer>(context, capacity);
  }
  return std::make_unique<ColdGraphTimer>(context, options.flush, capacity);
}
#endif

std::unique_ptr<Timer> make_timer(const Timing& timing, const TimingOptions& options,
                                  std::size_t candidates) {
  switch (timing.method) {
    case Method::kCpu:
      return std::make_unique<CpuTimer>(make_drain(options));
    case Method::kSync:
      return std::make_unique<SyncTimer>(make_drain(options));
#ifdef CONVTIME_WITH_CUDA
    case Method::kKernel:
      return std::make_unique<KernelTimer>(options.other_devices);
    case Method::kGraph:
      return make_graph_timer(options, Sampler::max_batch(candidates));
#endif
    default:
#ifdef CONVTIME_WITH_CUDA
      return std::make_unique<EventTimer>(static_cast<cudaStream_t>(options.stream),
                                          Sampler::max_batch(candidates));
#else
      (void)candidates;
      throw std::logic_error("a build without CUDA has no device to time events on");
#endif
  }
}

std::unique_ptr<QueueHold> make_hold(const Timer& timer, const TimingOptions& options,
                                     Timing& timing) {
  if (options.queue == Queue::kNone) {
    return nullptr;
  }
  if (!timer.queues_calls()) {
    timing.queue_reason =
        std::string("method '") + to_string(timing.method) + "' does not queue calls on a device";
    return nullptr;
  }
#ifdef CONVTIME_WITH_CUDA
  const auto stream = static_cast<cudaStream_t>(options.stream);
  if (options.queue == Queue::kGate) {
    return std::make_unique<GateHold>(stream);
  }
  return std::make_unique<SleepHold>(stream);
#else
  return nullptr;
#endif
}

/// Why kernel times cannot be had; empty where they can. Another tool's session is no reason where
/// CUPTI is shared, since then nobody's buffers are taken away.
std::string kernel_problem([[maybe_unused]] const TimingOptions& options) {
  std::string problem = kernel_method_unavailable();
#ifdef CONVTIME_WITH_CUDA
  if (problem.empty() && !options.kernel_unavailable.empty() && !CuptiSession::shared()) {
    problem = options.kernel_unavailable;
  }
#endif
  return problem;
}

/// The timer for the method asked for, or the best one that is possible; says which and why.
std::unique_ptr<Timer> choose_timer(const TimingOptions& options, std::size_t candidates,
                                    Timing& timing) {
  timing.method = options.method;
  if (!options.on_gpu) {
    if (options.method != Method::kAuto && options.method != Method::kCpu) {
      throw std::invalid_argument(std::string("method '") + to_string(options.method) +
                                  "' times work on a GPU and this work is on the CPU; use 'cpu' "
                                  "or 'auto', or name the device");
    }
    if (options.method == Method::kAuto) {
      timing.method = Method::kCpu;
      timing.method_reason = "the work is on the CPU";
    }
    return make_timer(timing, options, candidates);
  }
  if (options.method != Method::kAuto && options.method != Method::kKernel) {
    return make_timer(timing, options, candidates);
  }

  std::string problem = kernel_problem(options);
  if (problem.empty()) {
    timing.method = Method::kKernel;
    timing.method_reason =
        options.method == Method::kAuto ? "the work is on a GPU and CUPTI can be used" : "";
    try {
      return make_timer(timing, options, candidates);
    } catch (const std::runtime_error& error) {
      problem = error.what();
    }
  }
  if (options.method == Method::kKernel) {
    throw std::runtime_error("method 'kernel' cannot be used: " + problem +
                             "; use 'event' or 'auto'");
  }
  timing.method = Method::kEvent;
  timing.method_reason = "kernel times cannot be had: " + problem;
  return make_timer(timing, options, candidates);
}

/// Candidates with what is done before each call of them.
class ConditionedCandidates {
 public:
  ConditionedCandidates(std::span<Callable* const> candidates, const TimingOptions& options,
                        Method method, ClockProbe* probe)
      : callables_(candidates.begin(), candidates.end()) {
#ifdef CONVTIME_WITH_CUDA
    for (Callable*& callable : callables_) {
      if (probe != nullptr) {
        callable = add(std::make_unique<ClockedCallable>(*callable, *probe));
      }
      if (!options.flush.empty() && method != Method::kGraph) {  // whose graphs hold the flush
        callable = add(std::make_unique<ColdCallable>(*callable, options.flush));
      }
    }
#else
    (void)options, (void)method, (void)probe;
#endif
  }

  std::span<Callable* const> get() const { return callables_; }

 private:
  [[maybe_unused]] Callable* add(std::unique_ptr<Callable> callable) {
    return owned_.emplace_back(std::move(callable)).get();
  }

  std::vector<Callable*> callables_;
  std::vector<std::unique_ptr<Callable>> owned_;
};

std::unique_ptr<ClockProbe> make_probe(const TimingOptions& options, std::size_t candidates,
                                       Timing& timing) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    timing.max_clock_hertz = max_sm_clock_hertz();
    return std::make_unique<SmClockProbe>(static_cast<cudaStream_t>(options.stream),
                                          Sampler::max_batch(candidates));
  }
#else
  (void)options, (void)candidates, (void)timing;
#endif
  return nullptr;
}

/// What brings the device into the regime asked for; null where that is none, or cannot be.
std::unique_ptr<RegimeControl> make_regime(const TimingOptions& options, Timing& timing) {
  if (options.regime == Regime::kAsIs) {
    return nullptr;
  }
  if (!options.on_gpu) {
    timing.regime_reason = "the work is on the CPU, and regimes are a GPU's";
    return nullptr;
  }
  if (options.regime == Regime::kBurst) {
    return std::make_unique<BurstRegime>(timing.max_clock_hertz);
  }
  return std::make_unique<SustainedRegime>();
}

bool saw_no_work(const SamplerResult& samples) {
  return std::any_of(samples.activities.begin(), samples.activities.end(), [](const auto& calls) {
    return std::all_of(calls.begin(), calls.end(), [](const auto& one) { return one.empty(); });
  });
}

/// Takes the method's own cost off the samples, where it is known.
void correct_times(const TimingOptions& options, Timing& timing) {
#ifdef CONVTIME_WITH_CUDA
  if (timing.method != Method::kEvent && timing.method != Method::kGraph) {
    return;
  }
  const bool may_use_cupti = kernel_problem(options).empty();
  const CalibrationConditions conditions{options.flush, static_cast<cudaStream_t>(options.stream),
                                         options.calibration_reference, options.hooks};
  const std::optional<double> overhead =
      timing.method == Method::kEvent
          ? event_overhead_seconds(conditions, may_use_cupti)
          : graph_overhead_seconds(options.graph_recorder, conditions, may_use_cupti);
  if (!overhead.has_value()) {
    return;
  }
  timing.overhead_seconds = *overhead;
  timing.raw_seconds = timing.samples.seconds;
  for (std::vector<double>& seconds : timing.samples.seconds) {
    for (double& one : seconds) {
      one = std::max(one - *overhead, 0.0);  // a call without a kernel takes less than one with
    }
  }
#else
  (void)options;
  (void)timing;
#endif
}

void tabulate_activities(Timing& timing) {
  for (const auto& calls : timing.samples.activities) {
    std::vector<double>& spans = timing.spans.emplace_back();
    for (const auto& activities : calls) {
      spans.push_back(span_seconds(activities));
    }
    timing.activities.push_back(tabulate(calls));
  }
  timing.samples.activities.clear();
}

Timing sample(std::span<Callable* const> candidates, const TimingOptions& options) {
  Timing timing;
  std::unique_ptr<Timer> timer;
  // Some wait for the device when they begin.
  options.hooks.wait([&] { timer = choose_timer(options, candidates.size(), timing); });
  const std::unique_ptr<QueueHold> hold = make_hold(*timer, options, timing);
  const std::unique_ptr<ClockProbe> probe = make_probe(options, candidates.size(), timing);
  const ConditionedCandidates conditioned(candidates, options, timing.method, probe.get());
  const std::unique_ptr<RegimeControl> regime = make_regime(options, timing);
  Sampler sampler(*timer, hold.get(), probe.get(), options.warmup, options.stop, options.hooks,
                  regime.get());
  timing.samples = sampler.run(conditioned.get());
  if (regime != nullptr) {
    RegimeOutcome outcome = regime->outcome(timing.samples.clock_hertz, timing.samples.steady);
    timing.regime = outcome.regime;
    timing.regime_reason = std::move(outcome.reason);
  }
  if (timing.samples.queue_held) {
    timing.queue = options.queue;
  } else if (hold != nullptr) {
    timing.queue_reason = timing.samples.queue_reason;
  }
  return timing;
}

}  // namespace

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
    case Method::kKernel:
      return "kernel";
    case Method::kEvent:
      return "event";
    case Method::kGraph:
      return "graph";
    case Method::kSync:
      return "sync";
    case Method::kCpu:
      return "cpu";
  }
  return "unknown";
}

const char* to_string(Queue queue) {
  switch (queue) {
    case Queue::kGate:
      return "gate";
    case Queue::kSleep:
      return "sleep";
    case Queue::kNone:
      return "none";
  }
  return "unknown";
}

Method method_from_string(const std::string& name) {
  return enum_from_string(kMethods, "method", name);
}
Queue queue_from_string(const std::string& name) {
  return enum_from_string(kQueues, "queue", name);
}

bool cuda_available() {
#ifdef CONVTIME_WITH_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return devices > 0;
#else
  return false;
#endif
}

std::string kernel_method_unavailable() {
#ifdef CONVTIME_WITH_CUDA
  return CuptiSession::unavailable().value_or("");
#else
  return "convtime was built without CUDA";
#endif
}

Timing time_candidates(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.on_gpu && !cuda_available()) {
    throw std::invalid_argument("the work is said to be on a GPU and there is no CUDA device");
  }
  Timing timing = sample(candidates, options);
  if (timing.method == Method::kKernel && saw_no_work(timing.samples)) {
    if (options.method != Method::kAuto) {
      throw std::invalid_argument(
          "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
    }
    TimingOptions on_host = options;
    on_host.method = Method::kCpu;
    on_host.regime = Regime::kAsIs;
    timing = sample(candidates, on_host);
    timing.method_reason = "the calls issue no work to the GPU";
    timing.regime_reason = options.regime == Regime::kAsIs ? "" : timing.method_reason;
  }
  correct_times(options, timing);
  if (timing.method == Method::kKernel) {
    tabulate_activities(timing);
  }
  return timing;
}

double Samples::median() const { return convtime::median(seconds); }

std::ostream& operator<<(std::ostream& out, const Samples& samples) {
  const Summary summary = summarize(samples.seconds);
  constexpr double kMicro = 1e6;
  return out << summary.median * kMicro << " us (median of " << summary.count << ", 95 % interval "
             << summary.median_interval.low * kMicro << " .. "
             << summary.median_interval.high * kMicro << " us, " << to_string(samples.method)
             << ", queue " << to_string(samples.queue) << ", " << to_string(samples.regime) << ")";
}

Samples time_op(std::function<void()> operation) {
  TimingOptions options;
  options.on_gpu = cuda_available();
  return time_op(std::move(operation), options);
}

Samples time_op(std::function<void()> operation, const TimingOptions& options) {
  FunctionCallable callable(std::move(operation));
  Callable* const candidate = &callable;
  Timing timing = time_candidates({&candidate, 1}, options);
  return {std::move(timing.samples.seconds.front()), timing.method, timing.queue, timing.regime,
          std::move(timing.regime_reason)};
}

}  // namespace convtime
