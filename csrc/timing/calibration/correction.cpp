#include "timing/calibration/correction.h"

#include <optional>

#include "core/cuda.h"
#include "timing/method_choice.h"

namespace convtime {
namespace {

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
      state, [&](Method by) { return time_reference(by, options, state.held); }, kernel_problem());
}

}  // namespace

Outcome<Overhead> expected_overhead(Method method, const TimingOptions& options, bool held,
                                    ClockProbe& probe) {
  Outcome<Overhead> found;
  options.hooks.wait([&] {
    found = attempt([&] {
      const CalibrationState state = state_of(method, options, held);
      const std::optional<Overhead> last = process_calibrator().last(state, probe.idle_clock_hz());
      return last.has_value() ? *last : calibrate_waiting(state, options);
    });
  });
  return found;
}

Outcome<Overhead> calibrate(Method method, const TimingOptions& options, bool held) {
  Outcome<Overhead> found;
  options.hooks.wait([&] {
    found = attempt([&] { return calibrate_waiting(state_of(method, options, held), options); });
  });
  return found;
}

}  // namespace convtime
