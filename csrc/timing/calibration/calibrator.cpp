#include "timing/calibration/calibrator.h"

#include <cmath>
#include <exception>
#include <stdexcept>

namespace convtime {
namespace {

/// The two times were measured at slightly different clocks. At most the whole kernel time scales
/// with the clock; if a clock is unknown, the two were measured back to back.
double clock_uncertainty(const TimedReference& by_method, const TimedReference& kernel) {
  const double change = std::abs(by_method.clock_hz / kernel.clock_hz - 1);
  return std::isfinite(change) ? change * kernel.seconds : 0;
}

/// The reference has a separate graph.
double launch_uncertainty(const CalibrationState& state) {
  return state.method == Method::kGraph && state.flush.has_value()
             ? kDeviceTraits.flushed_graphs_differ_seconds
             : 0;
}

Overhead difference(const TimedReference& by_method, const TimedReference& kernel) {
  return {by_method.seconds - kernel.seconds, by_method.uncertainty_seconds +
                                                  kernel.uncertainty_seconds +
                                                  clock_uncertainty(by_method, kernel)};
}

}  // namespace

Outcome<Overhead> attempt(const std::function<Overhead()>& calibration) {
  try {
    return {calibration()};
  } catch (const std::exception& error) {
    // PyTorch's errors continue with a stack trace.
    const std::string text = error.what();
    return {Overhead{}, text.substr(0, text.find('\n'))};
  }
}

bool is_calibrated(Method method) { return method == Method::kEvent || method == Method::kGraph; }

Overhead Calibrator::calibrate(const CalibrationState& state, const TimeReference& time_reference,
                               const std::string& kernel_problem) {
  const TimedReference by_method = time_reference(state.method);
  // The lock also covers the use of CUPTI: it serves one thread at a time, and other threads wait
  // for the result.
  const std::scoped_lock lock(mutex_);
  const TimedReference kernel =
      time_kernel(state, by_method.clock_hz, time_reference, kernel_problem);
  Overhead overhead = difference(by_method, kernel);
  overhead.uncertainty_seconds += launch_uncertainty(state);
  overheads_[state].put(by_method.clock_hz, overhead);
  return overhead;
}

std::optional<Overhead> Calibrator::last(const CalibrationState& state, double clock_hz) {
  const std::scoped_lock lock(mutex_);
  return overheads_[state].find(clock_hz);
}

TimedReference Calibrator::time_kernel(const CalibrationState& state, double clock_hz,
                                       const TimeReference& time_reference,
                                       const std::string& kernel_problem) {
  // CUPTI's times do not depend on how the calls are queued.
  const CalibrationState kernel_state{state.device, Method::kKernel, state.flush, true,
                                      state.own_reference};
  ByClock<TimedReference>& known = kernels_[kernel_state];
  if (const std::optional<TimedReference> found = known.find(clock_hz)) {
    return *found;
  }
  if (!kernel_problem.empty()) {
    throw std::runtime_error(
        "the kernel's time at this clock is unknown, and CUPTI cannot be used: " + kernel_problem);
  }
  const TimedReference kernel = time_reference(Method::kKernel);
  if (!(kernel.seconds > 0)) {
    throw std::runtime_error("CUPTI recorded no kernel for a call that launches one");
  }
  known.put(kernel.clock_hz, kernel);
  return kernel;
}

void subtract(const Overhead& overhead, std::span<CandidateSamples> candidates) {
  for (CandidateSamples& candidate : candidates) {
    for (Sample& sample : candidate.samples) {
      sample.raw_seconds = std::exchange(sample.seconds, sample.seconds - overhead.seconds);
    }
    for (double& seconds : candidate.discarded) {
      seconds -= overhead.seconds;
    }
  }
}

}  // namespace convtime
