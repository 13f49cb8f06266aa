#include "timing/time_op.h"

#include <algorithm>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "timing/factory.h"
#include "timing/judge/statistics.h"
#include "timing/method_choice.h"
#include "timing/sampler.h"
#ifdef CONVTIME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "timing/conditions/sm_clock_probe.h"
#include "timing/correction.h"
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

std::string why_not_held(const TimingOptions& options, Method method, const QueueHold* hold,
                         const SamplerResult& samples) {
  if (options.queue == Queue::kNone || samples.queue_held) {
    return "";
  }
  return hold != nullptr
             ? samples.not_held_reason
             : std::string("method '") + to_string(method) + "' does not queue calls on a device";
}

RegimeOutcome regime_of(const TimingOptions& options, const RegimeControl* regime,
                        const SamplerResult& samples) {
  if (options.regime == Regime::kAsIs) {
    return {};
  }
  if (regime == nullptr) {
    return {Regime::kAsIs, "the work is on the CPU, and regimes are a GPU's"};
  }
  std::vector<std::vector<double>> clocks_hz;
  for (const CandidateSamples& candidate : samples.candidates) {
    clocks_hz.push_back(candidate.sm_clocks_hz);
  }
  return regime->outcome(clocks_hz, samples.steady);
}

Timing sample(std::span<Callable* const> candidates, const TimingOptions& options) {
  ChosenTimer chosen;
  // Some wait for the device when they begin.
  options.hooks.wait([&] { chosen = choose_timer(options, candidates.size()); });
  const std::unique_ptr<QueueHold> hold = make_hold(options, *chosen.timer);
  const std::optional<double> max_sm_clock_hz = max_clock_of(options);
  const std::unique_ptr<ClockProbe> probe = make_clock_probe(options, candidates.size());
  const ConditionedCandidates conditioned(candidates, options, chosen.method, probe.get());
  const std::unique_ptr<RegimeControl> regime = make_regime(options, max_sm_clock_hz.value_or(0));

  Sampler sampler(*chosen.timer, hold.get(), probe.get(), options.warmup, options.stop,
                  options.hooks, regime.get());
  sampler.supervise(options.supervision);
  SamplerResult samples = sampler.run(conditioned.get());

  const Queue queue = samples.queue_held ? options.queue : Queue::kNone;
  std::string queue_reason = why_not_held(options, chosen.method, hold.get(), samples);
  const RegimeOutcome outcome = regime_of(options, regime.get(), samples);
  return {.samples = std::move(samples),
          .method = chosen.method,
          .method_reason = std::move(chosen.reason),
          .queue = queue,
          .queue_reason = std::move(queue_reason),
          .regime = outcome.regime,
          .regime_reason = outcome.reason,
          .overhead_seconds = 0,
          .max_sm_clock_hz = max_sm_clock_hz};
}

/// Whether some candidate issued nothing to the GPU, in all of its calls.
bool saw_no_work(const SamplerResult& samples) {
  return std::any_of(
      samples.candidates.begin(), samples.candidates.end(), [](const CandidateSamples& candidate) {
        return std::all_of(candidate.activities.begin(), candidate.activities.end(),
                           [](const auto& activities) { return activities.empty(); });
      });
}

/// For calls that a GPU's method was to time, and that issue no work to it.
Timing sample_on_host(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.method != Method::kAuto) {
    throw std::invalid_argument(
        "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
  }
  TimingOptions on_host = options;
  on_host.method = Method::kCpu;
  on_host.regime = Regime::kAsIs;
  Timing timing = sample(candidates, on_host);
  timing.method_reason = "the calls issue no work to the GPU";
  timing.regime_reason = options.regime == Regime::kAsIs ? "" : timing.method_reason;
  return timing;
}

}  // namespace

Timing time_candidates(std::span<Callable* const> candidates, const TimingOptions& options) {
  if (options.on_gpu && !cuda_available()) {
    throw std::invalid_argument("the work is said to be on a GPU and there is no CUDA device");
  }
  Timing timing = sample(candidates, options);
  if (timing.method == Method::kKernel && saw_no_work(timing.samples)) {
    timing = sample_on_host(candidates, options);
  }
#ifdef CONVTIME_WITH_CUDA
  timing.overhead_seconds = subtract_overhead(timing.method, options, timing.samples.candidates);
#endif
  return timing;
}

std::string kernel_method_unavailable() { return kernel_problem({}); }

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
  return {std::move(timing.samples.candidates.front().seconds), timing.method, timing.queue,
          timing.regime, std::move(timing.regime_reason)};
}

}  // namespace convtime
