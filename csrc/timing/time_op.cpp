#include "timing/time_op.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "timing/calibration/calibrator.h"
#include "timing/device_traits.h"
#include "timing/factory.h"
#include "timing/judge/estimate.h"
#include "timing/method_choice.h"
#include "timing/sampler.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/synchronize.h"
#include "timing/conditions/sm_clock_probe.h"
#endif

namespace convtime {
namespace {

std::optional<double> max_clock_of([[maybe_unused]] const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu) {
    return max_sm_clock_hz();
  }
#endif
  return std::nullopt;
}

Outcome<Queue> queue_of(const TimingOptions& options, const SamplerResult& samples) {
  if (samples.queue_held) {
    return {options.queue, samples.not_held_reason};
  }
  if (samples.not_held_reason.empty() && options.queue != Queue::kNone) {
    return {Queue::kNone, std::string("method '") + to_string(options.method) +
                              "' does not queue calls on a device"};
  }
  return {Queue::kNone, samples.not_held_reason};
}

Outcome<Regime> regime_of(const TimingOptions& options, const RegimeControl* regime,
                          const SamplerResult& samples) {
  if (options.regime == Regime::kAsIs) {
    return {Regime::kAsIs};
  }
  if (regime == nullptr) {
    return {Regime::kAsIs, options.on_gpu ? "method 'cpu' times the host, and not the GPU"
                                          : "the work is on the CPU, and regimes are a GPU's"};
  }
  std::vector<std::vector<double>> clocks_hz;
  for (const CandidateSamples& candidate : samples.candidates) {
    clocks_hz.push_back(candidate.sm_clocks_hz());
  }
  return regime->outcome(clocks_hz, samples.steady);
}

/// If no regime watches the clock, watch calls long enough to see whether a GPU's clock falls under
/// them.
Warmup warmup_of(const TimingOptions& options) {
  Warmup warmup = options.warmup;
  if (options.on_gpu && options.method != Method::kCpu && options.regime == Regime::kAsIs) {
    warmup.min_steady_seconds = std::max(warmup.min_steady_seconds, kDeviceTraits.watch_seconds);
  }
  return warmup;
}

/// Return the calibration for the stop rule; empty if the rule does not depend on it. If no
/// calibration is possible, the rule judges uncorrected samples, as in the result.
std::function<Overhead(bool)> make_calibration([[maybe_unused]] const TimingOptions& options,
                                               [[maybe_unused]] ClockProbe* probe) {
#ifdef CONVTIME_WITH_CUDA
  if (is_calibrated(options.method) && depends_on_overhead(options.stop.criterion)) {
    return [&options, probe](bool held) {
      return expected_overhead(options.method, options, held, *probe).value;
    };
  }
#endif
  return {};
}

#ifdef CONVTIME_WITH_CUDA
constexpr char kStillBusy[] = "the GPU was still busy when the timeout passed";
#endif

/// Return the options with hooks that end waits for the device at the deadline, if there is one.
TimingOptions with_bounded_waits(const TimingOptions& options) {
  TimingOptions bounded = options;
#ifdef CONVTIME_WITH_CUDA
  if (options.on_gpu && options.supervision.deadline.is_set()) {
    bounded.hooks.await_device = [waiter = std::make_shared<DeviceWaiter>(),
                                  devices = options.other_devices,
                                  deadline = options.supervision.deadline] {
      const auto idle_at = waiter->wait(devices, deadline.seconds_left());
      if (!idle_at.has_value()) {
        throw DeadlineError(kStillBusy);
      }
      return nanoseconds_of(*idle_at);
    };
  }
#endif
  return bounded;
}

/// Sample with the options' method.
Timing sample(std::span<Callable* const> candidates, const TimingOptions& options,
              EarlierCalls& earlier) {
  std::unique_ptr<Timer> timer;
  // Some methods wait for the device when they start.
  options.hooks.wait_for_device([&] {
    load_timing_kernels(options);
    timer = make_method_timer(options, candidates.size());
  });
  const std::unique_ptr<QueueHold> hold = make_hold(options, *timer);
  const std::optional<double> max_sm_clock_hz = max_clock_of(options);
  const std::unique_ptr<ClockProbe> probe = make_clock_probe(options, candidates.size(), *timer);
  std::vector<Callable*> conditioned(candidates.begin(), candidates.end());
  const auto wrappers = add_conditions(conditioned, options, options.method, probe.get());
  const std::unique_ptr<RegimeControl> regime =
      make_regime(options, options.method, max_sm_clock_hz.value_or(0));

  SamplerResult samples = sample_rounds(conditioned,
                                        {.timer = *timer,
                                         .hold = hold.get(),
                                         .probe = probe.get(),
                                         .regime = regime.get(),
                                         .warmup = warmup_of(options),
                                         .rule = options.stop,
                                         .hooks = options.hooks,
                                         .calibrate = make_calibration(options, probe.get()),
                                         .supervision = options.supervision},
                                        earlier);

  Outcome<Queue> queue = queue_of(options, samples);
  Outcome<Regime> outcome = regime_of(options, regime.get(), samples);
  return {.samples = std::move(samples),
          .method = {options.method},
          .queue = std::move(queue),
          .regime = std::move(outcome),
          .overhead = {},
          .max_sm_clock_hz = max_sm_clock_hz};
}

/// Subtract the method's overhead from the samples, or record why it is unknown.
void correct([[maybe_unused]] Timing& timing, [[maybe_unused]] const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (!is_calibrated(timing.method.value)) {
    return;
  }
  if (timing.samples.stop_reason == StopReason::kTimeout &&
      !synchronize_within(options.other_devices, 0)) {
    timing.overhead.reason = kStillBusy;
    return;
  }
  timing.overhead = calibrate(timing.method.value, options, timing.samples.queue_held);
  if (timing.overhead.reason.empty()) {
    subtract(timing.overhead.value, timing.samples.candidates);
  }
#endif
}

}  // namespace

Timing time_candidates(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.on_gpu && !cuda_available()) {
    throw std::invalid_argument("on_gpu must be false without a CUDA device, got true");
  }
  Timing timing = sample_by_methods(with_bounded_waits(options),
                                    [&](const TimingOptions& by_method, EarlierCalls& earlier) {
                                      return sample(candidates, by_method, earlier);
                                    });
  correct(timing, options);
  return timing;
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

double Samples::median() const {
  return estimate_median({seconds}, {}, {.tick_seconds = clock_tick_seconds}).value;
}

std::ostream& operator<<(std::ostream& out, const Samples& samples) {
  constexpr double kMicro = 1e6;
  out << samples.median() * kMicro << " us (median of " << samples.seconds.size() << ", ";
  if (std::isfinite(samples.median_interval.low)) {
    out << "95 % interval " << samples.median_interval.low * kMicro << " .. "
        << samples.median_interval.high * kMicro << " us, ";
  } else {
    out << "too few for a 95 % interval, ";
  }
  out << to_string(samples.method) << ", queue " << to_string(samples.queue) << ", "
      << to_string(samples.regime) << ")";
  return samples.disturbance.empty() ? out : out << "; but it " << samples.disturbance;
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
  CandidateSamples& samples = timing.samples.candidates.front();
  std::vector<double> seconds = samples.seconds();
  const double between_runs = samples.between_runs * convtime::median(seconds);
  const Estimate estimate =
      estimate_median({seconds, samples.places()}, samples.batches(),
                      {timing.samples.clock_tick_seconds,
                       timing.overhead.value.uncertainty_seconds + between_runs});
  return {std::move(seconds),
          timing.method.value,
          timing.queue.value,
          timing.regime.value,
          std::move(timing.regime.reason),
          timing.overhead.value,
          estimate.interval,
          timing.samples.clock_tick_seconds,
          samples.repeats,
          std::move(samples.disturbance)};
}

}  // namespace convtime
