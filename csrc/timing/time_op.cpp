#include "timing/time_op.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "timing/host_timer.h"
#include "timing/statistics.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/cuda_check.h"
#include "timing/cupti_session.h"
#include "timing/event_overhead.h"
#include "timing/event_timer.h"
#include "timing/gate_hold.h"
#include "timing/kernel_timer.h"
#include "timing/sleep_hold.h"
#endif

namespace convtime {
namespace {

constexpr std::array kMethods = {Method::kAuto, Method::kKernel, Method::kEvent, Method::kSync,
                                 Method::kCpu};
constexpr std::array kQueues = {Queue::kGate, Queue::kSleep, Queue::kNone};

template <typename Enum, std::size_t N>
Enum from_string(const std::array<Enum, N>& values, const std::string& what,
                 const std::string& name) {
  std::string allowed;
  for (const Enum value : values) {
    if (name == to_string(value)) {
      return value;
    }
    allowed += (allowed.empty() ? "'" : ", '") + std::string(to_string(value)) + "'";
  }
  throw std::invalid_argument(what + " must be one of " + allowed + ", got '" + name + "'");
}

/// What waits until the device is idle, letting other host threads on.
std::function<void()> make_drain(const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    return
        [wait = options.hooks.wait] { wait([] { CONVTIME_CUDA_CHECK(cudaDeviceSynchronize()); }); };
  }
#endif
  (void)options;
  return [] {};
}

std::unique_ptr<Timer> make_timer(const Timing& timing, const TimingOptions& options,
                                  std::size_t candidates) {
  switch (timing.method) {
    case Method::kCpu:
      return std::make_unique<CpuTimer>(make_drain(options));
    case Method::kSync:
      return std::make_unique<SyncTimer>(make_drain(options));
#ifdef CONVTIME_WITH_CUDA
    case Method::kKernel:
      return std::make_unique<KernelTimer>();
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

  std::string problem =
      options.kernel_unavailable.empty() ? kernel_method_unavailable() : options.kernel_unavailable;
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

/// The candidates, each behind a flush of the cache; none where no flush is wanted.
std::vector<std::unique_ptr<Callable>> make_cold(std::span<Callable* const> candidates,
                                                 const TimingOptions& options) {
  std::vector<std::unique_ptr<Callable>> cold;
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu && options.flush.data != nullptr) {
    for (Callable* const candidate : candidates) {
      cold.push_back(std::make_unique<ColdCallable>(*candidate, options.flush, options.stream));
    }
  }
#else
  (void)candidates;
  (void)options;
#endif
  return cold;
}

bool saw_no_work(const SamplerResult& samples) {
  return std::any_of(samples.activities.begin(), samples.activities.end(), [](const auto& calls) {
    return std::all_of(calls.begin(), calls.end(), [](const auto& one) { return one.empty(); });
  });
}

/// For candidates that leave the GPU alone although it was expected to do their work.
Timing time_on_host(std::span<Callable* const> candidates, TimingOptions options) {
  options.method = Method::kCpu;
  Timing timing = time_candidates(candidates, options);
  timing.method_reason = "the calls issue no work to the GPU";
  return timing;
}

/// Takes the events' own cost off the samples, where it is known.
void correct_event_times(const TimingOptions& options, Timing& timing) {
#ifdef CONVTIME_WITH_CUDA
  const bool may_use_cupti =
      options.kernel_unavailable.empty() && kernel_method_unavailable().empty();
  const std::optional<double> overhead = event_overhead_seconds(may_use_cupti);
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

}  // namespace

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
    case Method::kKernel:
      return "kernel";
    case Method::kEvent:
      return "event";
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

Method method_from_string(const std::string& name) { return from_string(kMethods, "method", name); }
Queue queue_from_string(const std::string& name) { return from_string(kQueues, "queue", name); }

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
  Timing timing;
  const std::unique_ptr<Timer> timer = choose_timer(options, candidates.size(), timing);
  const std::unique_ptr<QueueHold> hold = make_hold(*timer, options, timing);
  const std::vector<std::unique_ptr<Callable>> cold = make_cold(candidates, options);
  std::vector<Callable*> sampled(candidates.begin(), candidates.end());
  std::transform(cold.begin(), cold.end(), sampled.begin(),
                 [](const auto& one) { return one.get(); });
  Sampler sampler(*timer, hold.get(), options.warmup, options.stop, options.hooks);
  timing.samples = sampler.run(sampled);
  if (timing.samples.queue_held) {
    timing.queue = options.queue;
  } else if (hold != nullptr) {
    timing.queue_reason = timing.samples.queue_reason;
  }
  if (timing.method == Method::kEvent) {
    correct_event_times(options, timing);
  }
  if (timing.method == Method::kKernel) {
    if (saw_no_work(timing.samples)) {
      if (options.method == Method::kAuto) {
        return time_on_host(candidates, options);
      }
      throw std::invalid_argument(
          "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
    }
    tabulate_activities(timing);
  }
  return timing;
}

double Samples::median() const { return quantile(seconds, 0.5); }

std::ostream& operator<<(std::ostream& out, const Samples& samples) {
  const Summary summary = summarize(samples.seconds);
  constexpr double kMicro = 1e6;
  return out << summary.median * kMicro << " us (median of " << summary.count << ", 95 % interval "
             << summary.median_interval.low * kMicro << " .. "
             << summary.median_interval.high * kMicro << " us, " << to_string(samples.method)
             << ", queue " << to_string(samples.queue) << ")";
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
  return {std::move(timing.samples.seconds.front()), timing.method, timing.queue};
}

}  // namespace convtime
