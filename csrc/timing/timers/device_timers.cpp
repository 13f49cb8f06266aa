#include "timing/timers/device_timers.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/synchronize.h"
#include "timing/conditions/sm_clock_probe.h"
#include "timing/device/kernels.h"
#include "timing/device/parameters.h"
#include "timing/device_traits.h"
#include "timing/judge/statistics.h"

namespace convtime {
namespace {

constexpr std::size_t kDurations = 64;  // by which a clock's tick is measured
/// A few microseconds, which is several steps even for a clock of 1 us.
constexpr std::uint64_t kMinCycles = 3000;
constexpr std::uint64_t kMaxCycles = 15000;
/// The minimum duration of an opening stamp: the launch of the following work is then in progress
/// before the clock is read.
constexpr double kOpenSeconds = 4e-6;

constexpr std::size_t kShortLength = 2;
/// The additional duration of the longer graph. It makes the events' resolution and the jitter of a
/// graph's launch a small share.
constexpr double kDifferenceSeconds = 200e-6;
constexpr std::size_t kMaxDifference = 32;
constexpr std::size_t kMaxCapturedCalls = 4096;
constexpr std::size_t kColdLength = 4;

/// Each call spins for a different number of cycles.
class VaryingSpin final : public Callable {
 public:
  explicit VaryingSpin(cudaStream_t stream) : stream_(stream) {}
  void call() override {
    constexpr std::uint64_t kStride = 7919;  // prime: avoids a pattern within the range
    offset_ = (offset_ + kStride) % (kMaxCycles - kMinCycles);
    timing_kernels().spin_cycles.launch(1, 1, 0, stream_, kMinCycles + offset_);
  }

 private:
  cudaStream_t stream_;
  std::uint64_t offset_ = 0;
};

void synchronize_stream(const GraphContext& context) {
  context.hooks.wait_for_device(
      [&] { CONVTIME_CUDA_CHECK(cudaStreamSynchronize(context.stream)); });
}

/// Outside a capture: a first call may compile, load modules or choose an algorithm.
void call_once(Callable& callable, const GraphContext& context) {
  callable.call();
  callable.discard_result();
  synchronize_stream(context);
  callable.settle();
}

std::unique_ptr<DeviceGraph> record(const GraphRecorder& recorder,
                                    const std::function<void(void* stream)>& work) {
  try {
    return recorder(work);
  } catch (const std::exception& error) {
    const std::string cause = error.what();
    std::throw_with_nested(std::runtime_error(
        "method 'graph' cannot capture this call: " + cause.substr(0, cause.find('\n')) +
        "; use method 'kernel' or 'event', or remove operations that a CUDA graph cannot contain "
        "from the call (synchronization, copies to pageable memory)"));
  }
}

std::unique_ptr<DeviceGraph> record_calls(const GraphRecorder& recorder, Callable& callable,
                                          std::size_t length) {
  return record(recorder, [&](void*) {
    for (std::size_t i = 0; i < length; ++i) {
      callable.call();
      callable.discard_result();
    }
  });
}

/// Runs before any timing, because capturing waits for the device.
template <typename Captured, typename Capture>
void capture_missing(std::span<Callable* const> calls, std::map<Callable*, Captured>& captured,
                     Capture capture) {
  for (Callable* const callable : calls) {
    if (!captured.contains(callable)) {
      captured.emplace(callable, capture(*callable));
    }
  }
}

/// Unused graphs occupy a process's first positions, once per device, so that a call and its
/// calibration reference are launched in the same way (DeviceTraits::first_graphs).
void occupy_first_places(const GraphContext& context, DeviceStamps& stamps) {
  constexpr std::size_t kGraphs = kDeviceTraits.first_graphs;
  constexpr int kPairsOfKernels = kDeviceTraits.kernels_of_first_graphs / 2;
  using Graphs = std::vector<std::unique_ptr<DeviceGraph>>;
  static auto* const unused = new std::map<int, Graphs>;  // never destroyed: CUDA may end first
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Graphs& graphs = (*unused)[current_device()];
  while (graphs.size() < kGraphs) {
    graphs.push_back(record(context.recorder, [&](void* recording) {
      for (int i = 0; i < kPairsOfKernels; ++i) {
        stamps.open(static_cast<cudaStream_t>(recording));
        stamps.close(static_cast<cudaStream_t>(recording));
      }
    }));
  }
}

}  // namespace

double device_tick(DeviceClock clock, const std::function<double()>& measure) {
  using Ticks = std::map<std::pair<int, DeviceClock>, double>;
  static auto* const mutex = new std::mutex;  // never destroyed: timings may outlive main()
  static auto* const known = new Ticks;
  const std::pair key{current_device(), clock};
  const std::lock_guard lock(*mutex);
  const auto found = known->find(key);
  return found != known->end() ? found->second : known->emplace(key, measure()).first->second;
}

double measure_tick(Timer& timer, cudaStream_t stream, std::size_t batch) {
  VaryingSpin spin(stream);
  std::vector<double> seconds;
  const std::vector<Callable*> calls(kDurations, &spin);
  for (std::size_t first = 0; first < kDurations; first += batch) {
    const std::size_t count = std::min(batch, kDurations - first);
    timer.run(std::span(calls).first(count));
    for (const TimedCall& call : timer.collect(count).calls) {
      seconds.push_back(call.seconds);
    }
  }
  return tick_of(seconds);
}

double globaltimer_tick(cudaStream_t stream, const DeviceAllocator& allocate) {
  return device_tick(DeviceClock::kGlobalTimer, [&] {
    const DeviceMemory<std::uint64_t> times(kGlobaltimerSteps + 1, allocate);
    timing_kernels().watch_globaltimer.launch(1, 1, 0, stream, times.get());
    const std::vector<std::uint64_t> seen = times.read(kGlobaltimerSteps + 1, stream);
    std::uint64_t shortest = seen[1] - seen[0];
    for (unsigned step = 1; step < kGlobaltimerSteps; ++step) {
      shortest = std::min(shortest, seen[step + 1] - seen[step]);
    }
    return static_cast<double>(shortest) * 1e-9;
  });
}

KernelTimer::KernelTimer(Metric metric, cudaStream_t stream, std::vector<int> other_devices,
                         std::function<void()> drain)
    : metric_(metric), other_devices_(std::move(other_devices)), drain_(std::move(drain)) {
  tick_seconds_ =
      device_tick(DeviceClock::kRecords, [&] { return measure_tick(*this, stream, kDurations); });
}

void KernelTimer::run(std::span<Callable* const> calls) {
  windows_.resize(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    windows_[i].of = calls[i];
    windows_[i].prepare = CuptiSession::now();
    calls[i]->prepare();
    if (isolated_) {
      drain_();
    }
    windows_[i].begin = CuptiSession::now();
    calls[i]->call();
    windows_[i].end = CuptiSession::now();
    calls[i]->discard_result();
    if (isolated_) {
      drain_();
    }
  }
}

Collection KernelTimer::collect(std::size_t /*calls*/) {
  synchronize(other_devices_);  // not only the stream: a call may use others
  Attribution attribution = session_.take(windows_);
  Collection collected{.fault = attribution.faults.describe(),
                       .of_other_threads = attribution.of_other_threads};
  for (std::vector<DeviceActivity>& activities : attribution.calls) {
    const double seconds = seconds_by(metric_, activities);
    collected.calls.push_back({.seconds = seconds, .activities = std::move(activities)});
  }
  for (const UnrecordedWork& work : attribution.unrecorded) {
    collected.calls[work.window].unrecorded.push_back(CuptiSession::api_name(work.function));
  }
  return collected;
}

EventTimer::EventTimer(cudaStream_t stream, std::size_t capacity)
    : stream_(stream), events_(capacity) {
  tick_seconds_ =
      device_tick(DeviceClock::kEvents, [&] { return measure_tick(*this, stream_, capacity); });
}

void EventTimer::run(std::span<Callable* const> calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i]->prepare();
    CONVTIME_CUDA_CHECK(cudaEventRecord(events_.at(i).start.get(), stream_));
    calls[i]->call();
    CONVTIME_CUDA_CHECK(cudaEventRecord(events_[i].stop.get(), stream_));
    calls[i]->discard_result();
  }
}

Collection EventTimer::collect(std::size_t calls) {
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream_));
  Collection collected;
  for (std::size_t i = 0; i < calls; ++i) {
    collected.calls.push_back({.seconds = events_.at(i).seconds()});
  }
  return collected;
}

DeviceStamps::DeviceStamps(cudaStream_t stream, std::size_t capacity,
                           const DeviceAllocator& allocate)
    : stream_(stream),
      capacity_(capacity),
      tick_seconds_(globaltimer_tick(stream, allocate)),
      open_cycles_(kOpenSeconds * max_sm_clock_hz()),
      random_cycles_(phase_range_seconds(tick_seconds_) * max_sm_clock_hz()),
      count_and_stamps_(1 + capacity, allocate) {
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(count_and_stamps_.get(), 0, sizeof(std::uint64_t), stream_));
}

void DeviceStamps::stamp(bool open, cudaStream_t stream) {
  timing_kernels().stamp.launch(1, 1, 0, stream, count_and_stamps_.get(),
                                static_cast<std::uint64_t>(capacity_), open, open_cycles_,
                                random_cycles_);
}

std::vector<std::uint64_t> DeviceStamps::take() {
  const std::vector<std::uint64_t> stamps = count_and_stamps_.read(1 + capacity_, stream_);
  CONVTIME_CUDA_CHECK(cudaMemsetAsync(count_and_stamps_.get(), 0, sizeof(std::uint64_t), stream_));
  const std::size_t count = stamps.front();
  if (count > capacity_) {
    throw std::logic_error("the number of stamps must not exceed the capacity");
  }
  return {stamps.begin() + 1, stamps.begin() + 1 + static_cast<std::ptrdiff_t>(count)};
}

GraphTimer::GraphTimer(GraphContext context, std::size_t capacity)
    : context_(std::move(context)),
      event_tick_seconds_(EventTimer(context_.stream, 1).tick_seconds()),
      samples_(capacity) {}

/// The coarsest tick of the candidates: a difference of event times, divided by the number of
/// calls.
double GraphTimer::tick_seconds() const {
  double coarsest = 0;
  for (const auto& [callable, captured] : captured_) {
    coarsest =
        std::max(coarsest, event_tick_seconds_ / static_cast<double>(captured.length_difference));
  }
  return coarsest;
}

void GraphTimer::run(std::span<Callable* const> calls) {
  capture_missing(calls, captured_, [this](Callable& callable) { return capture(callable); });
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const CapturedCalls& captured = captured_.at(calls[i]);
    Sample& sample = samples_.at(i);
    sample.length_difference = captured.length_difference;
    calls[i]->prepare();
    replay(*captured.shorter, sample.shorter);
    replay(*captured.longer, sample.longer);
  }
}

Collection GraphTimer::collect(std::size_t calls) {
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  Collection collected;
  for (std::size_t i = 0; i < calls; ++i) {
    const Sample& sample = samples_.at(i);
    collected.calls.push_back({.seconds = (sample.longer.seconds() - sample.shorter.seconds()) /
                                          static_cast<double>(sample.length_difference)});
  }
  return collected;
}

void GraphTimer::replay(DeviceGraph& graph, const EventPair& around) {
  CONVTIME_CUDA_CHECK(cudaEventRecord(around.start.get(), context_.stream));
  graph.replay();
  CONVTIME_CUDA_CHECK(cudaEventRecord(around.stop.get(), context_.stream));
}

GraphTimer::CapturedCalls GraphTimer::capture(Callable& callable) {
  if (callable.distinct_calls() > kMaxCapturedCalls) {
    throw std::invalid_argument(
        "method 'graph' can capture at most " + std::to_string(kMaxCapturedCalls) +
        " calls, but data rotates over " + std::to_string(callable.distinct_calls()) +
        "; use cache 'cold', or method 'kernel'");
  }
  call_once(callable, context_);
  CapturedCalls result;
  result.shorter = record_calls(context_.recorder, callable, kShortLength);
  const double call_seconds = estimate_seconds(*result.shorter, kShortLength);
  const double wanted = std::clamp(std::ceil(kDifferenceSeconds / std::max(call_seconds, 1e-9)),
                                   1.0, static_cast<double>(kMaxDifference));
  // At least as many calls as copies of the data: with fewer, calls would find the data cached.
  result.length_difference = std::max(static_cast<std::size_t>(wanted), callable.distinct_calls());
  result.longer =
      record_calls(context_.recorder, callable, kShortLength + result.length_difference);
  return result;
}

double GraphTimer::estimate_seconds(DeviceGraph& graph, std::size_t length) {
  const EventPair around;
  replay(graph, around);  // a first untimed replay, because the first launch uploads the graph
  replay(graph, around);
  synchronize_stream(context_);
  return around.seconds() / static_cast<double>(length);
}

ColdGraphTimer::ColdGraphTimer(GraphContext context, std::vector<FlushBuffer> flush,
                               std::size_t capacity)
    : context_(std::move(context)),
      flush_(std::move(flush)),
      stamps_(context_.stream, 2 * kColdLength * capacity, context_.allocate) {}

void ColdGraphTimer::run(std::span<Callable* const> calls) {
  capture_missing(calls, captured_, [this](Callable& callable) { return capture(callable); });
  for (Callable* const callable : calls) {
    callable->prepare();
    captured_.at(callable)->replay();
  }
}

Collection ColdGraphTimer::collect(std::size_t calls) {
  const std::vector<std::uint64_t> stamps = stamps_.take();
  Collection collected;
  for (std::size_t i = 0; i < calls; ++i) {
    std::uint64_t nanoseconds = 0;
    for (std::size_t call = i * kColdLength; call < (i + 1) * kColdLength; ++call) {
      nanoseconds += stamps.at(2 * call + 1) - stamps.at(2 * call);
    }
    collected.calls.push_back({.seconds = static_cast<double>(nanoseconds) * 1e-9 / kColdLength});
  }
  return collected;
}

double ColdGraphTimer::tick_seconds() const { return stamps_.tick_seconds() / kColdLength; }

std::unique_ptr<DeviceGraph> ColdGraphTimer::capture(Callable& callable) {
  occupy_first_places(context_, stamps_);
  call_once(callable, context_);
  return record(context_.recorder, [&](void* recording) {
    const auto stream = static_cast<cudaStream_t>(recording);
    for (std::size_t i = 0; i < kColdLength; ++i) {
      for (const FlushBuffer& buffer : flush_) {
        flush(buffer, stream);
      }
      stamps_.open(stream);
      callable.call();
      callable.discard_result();
      stamps_.close(stream);
    }
  });
}

}  // namespace convtime
