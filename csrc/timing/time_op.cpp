#include "timing/time_op.h"

#include <array>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "timing/host_timer.h"
#include "timing/statistics.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/cuda_check.h"
#include "timing/event_timer.h"
#include "timing/sleep_hold.h"
#endif

namespace convtime {
namespace {

constexpr std::array kMethods = {Method::kAuto, Method::kEvent, Method::kSync, Method::kCpu};
constexpr std::array kQueues = {Queue::kSleep, Queue::kNone};

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
  return std::make_unique<SleepHold>(static_cast<cudaStream_t>(options.stream));
#else
  return nullptr;
#endif
}

}  // namespace

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
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

Timing time_candidates(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.on_gpu && !cuda_available()) {
    throw std::invalid_argument("the work is said to be on a GPU and there is no CUDA device");
  }
  Timing timing;
  timing.method = options.method;
  if (options.method == Method::kAuto) {
    timing.method = options.on_gpu ? Method::kEvent : Method::kCpu;
    timing.method_reason = options.on_gpu ? "the work is on a GPU" : "the work is on the CPU";
  } else if (!options.on_gpu && options.method != Method::kCpu) {
    throw std::invalid_argument(std::string("method '") + to_string(options.method) +
                                "' times work on a GPU and this work is on the CPU; use 'cpu' or "
                                "'auto', or name the device");
  }
  const std::unique_ptr<Timer> timer = make_timer(timing, options, candidates.size());
  const std::unique_ptr<QueueHold> hold = make_hold(*timer, options, timing);
  Sampler sampler(*timer, hold.get(), options.warmup, options.stop, options.hooks);
  timing.samples = sampler.run(candidates);
  if (timing.samples.queue_held) {
    timing.queue = options.queue;
  } else if (hold != nullptr) {
    timing.queue_reason = timing.samples.queue_reason;
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
