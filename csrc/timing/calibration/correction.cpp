#include "timing/calibration/calibrator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/device_memory.h"
#include "timing/device/kernels.h"
#include "timing/device/parameters.h"
#include "timing/factory.h"
#include "timing/judge/estimate.h"
#include "timing/judge/statistics.h"
#include "timing/sampler.h"
#include "timing/time_op.h"

namespace convtime {
namespace {

constexpr std::size_t kSamples = 100;

constexpr unsigned kReferenceBlocks = 256;
constexpr unsigned kReferenceThreads = 256;

/// Launches to a stream that can change, because a graph is recorded from a separate stream.
class ReferenceKernel final : public Callable {
 public:
  ReferenceKernel(const cudaStream_t& stream, const DeviceAllocator& allocate)
      : stream_(stream), result_(kReferenceBlocks, allocate) {}
  void call() override {
    timing_kernels().reference.launch(kReferenceBlocks, kReferenceThreads, 0, stream_,
                                      ReferenceParameters{}, result_.get());
  }

 private:
  const cudaStream_t& stream_;
  DeviceMemory<std::uint64_t> result_;
};

/// Return the recorder, with `stream` set to the recorded stream during the recording.
GraphRecorder switching(const GraphRecorder& recorder, cudaStream_t& stream) {
  return [&recorder, &stream](const std::function<void(void*)>& work) {
    return recorder([&](void* recording) {
      const cudaStream_t outside = std::exchange(stream, static_cast<cudaStream_t>(recording));
      work(recording);
      stream = outside;
    });
  };
}

double median_clock_hz(std::span<const double> clocks_hz) {
  std::vector<double> known_hz;
  std::ranges::copy_if(clocks_hz, std::back_inserter(known_hz),
                       [](double clock_hz) { return std::isfinite(clock_hz); });
  return known_hz.empty() ? kUnknownClockHz : quantile(known_hz, 0.5);
}

/// Two batches are too few for a comparison.
TimedReference summarized(const SamplerResult& result) {
  const CandidateSamples& samples = result.candidates.front();
  const std::vector<double> seconds = samples.seconds();
  const Estimate estimate =
      estimate_median({seconds}, {}, {.tick_seconds = result.clock_tick_seconds});
  return {estimate.value,
          std::max(estimate.value - estimate.interval.low, estimate.interval.high - estimate.value),
          median_clock_hz(samples.sm_clocks_hz())};
}

Calibrator& process_calibrator() {
  static auto* const calibrator = new Calibrator;  // never destroyed: a thread may outlive main()
  return *calibrator;
}

CalibrationState state_of(Method method, const TimingOptions& options, bool held) {
  std::optional<L2Lines> flush;
  if (!options.flush.empty()) {
    flush = options.flush.front().leaves;
  }
  return {current_device(), method, flush, held, !options.calibration_reference};
}

Overhead calibrate_waiting(const CalibrationState& state, const TimingOptions& options) {
  return process_calibrator().calibrate(
      state, [&](Method by) { return time_reference(by, options, state.held); },
      kernel_method_unavailable());
}

}  // namespace

TimedReference time_reference(Method method, const TimingOptions& asked, bool held) {
  auto stream = static_cast<cudaStream_t>(asked.stream);
  TimingOptions options = asked;
  options.hooks = {};
  options.graph_recorder = switching(asked.graph_recorder, stream);

  const std::unique_ptr<Callable> reference =
      asked.calibration_reference ? asked.calibration_reference()
                                  : std::make_unique<ReferenceKernel>(stream, asked.allocate);
  Callable* candidate = reference.get();
  const std::unique_ptr<Timer> timer = make_timer(method, options, 1);
  const std::unique_ptr<QueueHold> hold = held ? make_hold(options, *timer) : nullptr;
  const std::unique_ptr<ClockProbe> probe = make_clock_probe(options, 1, *timer);
  const auto wrappers = add_conditions({&candidate, 1}, options, method, probe.get());
  return summarized(sample_rounds({&candidate, 1}, {.timer = *timer,
                                                    .hold = hold.get(),
                                                    .probe = probe.get(),
                                                    .warmup = {.calls = 3, .steady = false},
                                                    .rule = {.criterion = StopCriterion::kCount,
                                                             .min_samples = kSamples,
                                                             .max_samples = kSamples}}));
}

Outcome<Overhead> expected_overhead(Method method, const TimingOptions& options, bool held,
                                    ClockProbe& probe) {
  Outcome<Overhead> overhead;
  options.hooks.wait([&] {
    overhead = attempt([&] {
      const CalibrationState state = state_of(method, options, held);
      const std::optional<Overhead> last = process_calibrator().last(state, probe.idle_clock_hz());
      return last.has_value() ? *last : calibrate_waiting(state, options);
    });
  });
  return overhead;
}

Outcome<Overhead> calibrate(Method method, const TimingOptions& options, bool held) {
  Outcome<Overhead> overhead;
  options.hooks.wait([&] {
    overhead = attempt([&] { return calibrate_waiting(state_of(method, options, held), options); });
  });
  return overhead;
}

}  // namespace convtime
