#include "timing/timers/graph_timer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "timing/device_traits.h"
#include "timing/timers/event_timer.h"

namespace convtime {
namespace {

constexpr std::size_t kShortLength = 2;
/// The additional duration of the longer graph. It makes the events' resolution and the jitter of a
/// graph's launch a small share.
constexpr double kDifferenceSeconds = 200e-6;
constexpr std::size_t kMaxDifference = 32;
constexpr std::size_t kMaxCapturedCalls = 4096;
constexpr std::size_t kColdLength = 4;

void synchronize_stream(const GraphContext& context) {
  context.wait([&] { CONVTIME_CUDA_CHECK(cudaStreamSynchronize(context.stream)); });
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
  static auto* const kept = new std::map<int, Graphs>;  // never destroyed: CUDA may end first
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Graphs& graphs = (*kept)[current_device()];
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

double GraphTimer::EventPair::seconds() const {
  float milliseconds = 0;
  CONVTIME_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()));
  return static_cast<double>(milliseconds) * 1e-3;
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

void GraphTimer::collect(std::span<double> seconds) {
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const Sample& sample = samples_.at(i);
    seconds[i] = (sample.longer.seconds() - sample.shorter.seconds()) /
                 static_cast<double>(sample.length_difference);
  }
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

void ColdGraphTimer::collect(std::span<double> seconds) {
  const std::vector<std::uint64_t> stamps = stamps_.take();
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    std::uint64_t nanoseconds = 0;
    for (std::size_t call = i * kColdLength; call < (i + 1) * kColdLength; ++call) {
      nanoseconds += stamps.at(2 * call + 1) - stamps.at(2 * call);
    }
    seconds[i] = static_cast<double>(nanoseconds) * 1e-9 / kColdLength;
  }
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
