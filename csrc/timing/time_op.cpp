#include "timing/time_op.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <stdexcept>
#include <utility>

#include "timing/calibration/calibrator.h"
#include "timing/device_traits.h"
#include "timing/factory.h"
#include "timing/judge/estimate.h"
#include "timing/judge/statistics.h"
#include "timing/method_choice.h"
#include "timing/sampler.h"
#include "timing/trace/trace_lost.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/synchronize.h"
#include "timing/calibration/correction.h"
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

std::string why_not_held(const TimingOptions& options, Method method,
                         const SamplerResult& samples) {
  if (!samples.not_held_reason.empty()) {
    return samples.not_held_reason;
  }
  if (options.queue == Queue::kNone || samples.queue_held) {
    return "";
  }
  return std::string("method '") + to_string(method) + "' does not queue calls on a device";
}

RegimeOutcome regime_of(const TimingOptions& options, const RegimeControl* regime,
                        const SamplerResult& samples) {
  if (options.regime == Regime::kAsIs) {
    return {};
  }
  if (regime == nullptr) {
    return {Regime::kAsIs, options.on_gpu ? "method 'cpu' times the host, and not the GPU"
                                          : "the work is on the CPU, and regimes are a GPU's"};
  }
  std::vector<std::vector<double>> clocks_hz;
  for (const CandidateSamples& candidate : samples.candidates) {
    clocks_hz.push_back(candidate.sm_clocks_hz);
  }
  return regime->outcome(clocks_hz, samples.steady);
}

/// If no regime watches the clock, watch calls long enough to see whether a GPU's clock falls under
/// them.
Warmup warmup_of(const TimingOptions& options, Method method) {
  Warmup warmup = options.warmup;
  if (options.on_gpu && method != Method::kCpu && options.regime == Regime::kAsIs) {
    warmup.min_steady_seconds = std::max(warmup.min_steady_seconds, kDeviceTraits.watch_seconds);
  }
  return warmup;
}

/// Return the calibration for the stop rule; empty if the rule does not depend on it. If no
/// calibration is possible, the rule judges uncorrected samples, as in the result.
std::function<Overhead(bool)> make_calibration([[maybe_unused]] const TimingOptions& options,
                                               [[maybe_unused]] Method method,
                                               [[maybe_unused]] ClockProbe* probe) {
#ifdef CONVTIME_WITH_CUDA
  if (is_calibrated(method) && depends_on_overhead(options.stop.criterion)) {
    return [&options, method, probe](bool held) {
      return expected_overhead(method, options, held, *probe).overhead.value_or(Overhead{});
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
    bounded.hooks.await_device = [devices = options.other_devices,
                                  deadline = options.supervision.deadline] {
      if (!synchronize_within(devices, deadline.seconds_left())) {
        throw DeadlineError(kStillBusy);
      }
    };
  }
#endif
  return bounded;
}

Timing sample(std::span<Callable* const> candidates, const TimingOptions& asked,
              EarlierCalls& earlier) {
  const TimingOptions options = with_bounded_waits(asked);
  ChosenTimer chosen;
  // Some methods wait for the device when they start.
  options.hooks.wait([&] {
    options.hooks.await_device();
    chosen = choose_timer(options, candidates.size());
  });
  const std::unique_ptr<QueueHold> hold = make_hold(options, *chosen.timer);
  const std::optional<double> max_sm_clock_hz = max_clock_of(options);
  const std::unique_ptr<ClockProbe> probe =
      make_clock_probe(options, candidates.size(), *chosen.timer);
  const ConditionedCandidates conditioned(candidates, options, chosen.method, probe.get());
  const std::unique_ptr<RegimeControl> regime =
      make_regime(options, chosen.method, max_sm_clock_hz.value_or(0));

  Sampler sampler(*chosen.timer, hold.get(), probe.get(), warmup_of(options, chosen.method),
                  options.stop, options.hooks, regime.get(),
                  make_calibration(options, chosen.method, probe.get()));
  sampler.supervise(options.supervision);
  SamplerResult samples = sampler.run(conditioned.get(), earlier);

  const Queue queue = samples.queue_held ? options.queue : Queue::kNone;
  std::string queue_reason = why_not_held(options, chosen.method, samples);
  const RegimeOutcome outcome = regime_of(options, regime.get(), samples);
  return {.samples = std::move(samples),
          .method = chosen.method,
          .method_reason = std::move(chosen.reason),
          .queue = queue,
          .queue_reason = std::move(queue_reason),
          .regime = outcome.regime,
          .regime_reason = outcome.reason,
          .overhead = {},
          .overhead_reason = "",
          .max_sm_clock_hz = max_sm_clock_hz};
}

/// Subtract the method's overhead from the samples, or record why it is unknown.
void correct([[maybe_unused]] Timing& timing, [[maybe_unused]] const TimingOptions& options) {
#ifdef CONVTIME_WITH_CUDA
  if (!is_calibrated(timing.method)) {
    return;
  }
  if (timing.samples.stop_reason == StopReason::kTimeout &&
      !synchronize_within(options.other_devices, 0)) {
    timing.overhead_reason = kStillBusy;
    return;
  }
  const Calibration calibration = calibrate(timing.method, options, timing.samples.queue_held);
  timing.overhead_reason = calibration.failure;
  if (calibration.overhead.has_value()) {
    timing.overhead = *calibration.overhead;
    subtract(timing.overhead, timing.samples.candidates);
  }
#endif
}

/// Return all calls of a run whose samples are dropped.
EarlierCalls calls_of(const SamplerResult& run) {
  EarlierCalls calls{{}, run.warmup_calls, run.warmup_seconds + run.sampling_seconds};
  for (const CandidateSamples& samples : run.candidates) {
    calls.first_call_seconds.push_back(samples.first_call_seconds);
    calls.count += samples.seconds.size() + samples.discarded.size();
  }
  return calls;
}

/// Return the names of functions whose work has no CUPTI record.
std::string unrecorded_work(std::span<const CandidateSamples> candidates) {
  std::set<std::string> functions;
  for (const CandidateSamples& samples : candidates) {
    functions.insert(samples.unrecorded.begin(), samples.unrecorded.end());
  }
  std::string names;
  for (const std::string& function : functions) {
    names += (names.empty() ? "" : ", ") + function;
  }
  return names;
}

/// Time calls on the host that issue no work to the GPU, although a GPU method was selected.
Timing sample_on_host(std::span<Callable* const> candidates, const TimingOptions& options,
                      const SamplerResult& before) {
  if (options.method != Method::kAuto) {
    throw std::invalid_argument(
        "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
  }
  TimingOptions on_host = options;
  on_host.method = Method::kCpu;
  on_host.regime = Regime::kAsIs;
  EarlierCalls earlier = calls_of(before);
  Timing timing = sample(candidates, on_host, earlier);
  timing.method_reason = "the calls issue no work to the GPU";
  timing.regime_reason = options.regime == Regime::kAsIs ? "" : timing.method_reason;
  return timing;
}

/// Throw TraceLost if CUPTI cannot determine the calls' work.
void require_records(const Timing& timing) {
  if (timing.method != Method::kKernel || !none_issued_work(timing.samples.candidates)) {
    return;
  }
  if (timing.samples.of_other_threads > 0) {
    throw TraceLost(
        "all work of the GPU during the calls is from threads that also issue work while no call "
        "is made");
  }
  const std::string unrecorded = unrecorded_work(timing.samples.candidates);
  if (!unrecorded.empty()) {
    throw TraceLost("CUPTI has no record of the calls' only work, which is issued by " +
                    unrecorded);
  }
}

/// Sample; switch to another method if kernel times are lost on the way.
Timing sample_to_the_end(std::span<Callable* const> candidates, const TimingOptions& options) {
  EarlierCalls earlier;
  try {
    Timing timing = sample(candidates, options, earlier);
    earlier = calls_of(timing.samples);
    require_records(timing);
    return timing;
  } catch (const TraceLost& lost) {
    if (options.method != Method::kAuto) {
      throw std::runtime_error(kernel_refusal(lost.what()));
    }
    if (options.supervision.deadline.passed()) {
      throw DeadlineError(fallback_reason(lost.what()));
    }
    TimingOptions without_records = options;
    without_records.method = fallback_method(options);
    Timing timing = sample(candidates, without_records, earlier);
    timing.method_reason = fallback_reason(lost.what());
    return timing;
  }
}

}  // namespace

Timing time_candidates(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.on_gpu && !cuda_available()) {
    throw std::invalid_argument("on_gpu must be false without a CUDA device, got true");
  }
  Timing timing = sample_to_the_end(candidates, options);
  if (timing.method == Method::kKernel && none_issued_work(timing.samples.candidates)) {
    timing = sample_on_host(candidates, options, timing.samples);
  }
  correct(timing, options);
  return timing;
}

std::string kernel_method_unavailable() { return kernel_problem(); }

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
  const double between_runs = samples.between_runs * convtime::median(samples.seconds);
  const Estimate estimate = estimate_median(
      {samples.seconds, samples.places}, timing.samples.batches,
      {timing.samples.clock_tick_seconds, timing.overhead.uncertainty_seconds + between_runs});
  return {std::move(samples.seconds),
          timing.method,
          timing.queue,
          timing.regime,
          std::move(timing.regime_reason),
          timing.overhead,
          estimate.interval,
          timing.samples.clock_tick_seconds,
          samples.repeats,
          std::move(samples.disturbance)};
}

}  // namespace convtime
