#pragma once

#include <compare>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/export.h"
#include "core/outcome.h"
#include "timing/conditions/clock_probe.h"
#include "timing/device_traits.h"
#include "timing/judge/statistics.h"
#include "timing/options.h"
#include "timing/samples.h"

namespace convtime {

inline constexpr double kUnknownClockHz = std::numeric_limits<double>::quiet_NaN();

/// The time of a call that issues one kernel.
struct TimedReference {
  double seconds = 0;  ///< median
  double uncertainty_seconds = 0;
  double clock_hz = kUnknownClockHz;  ///< device clock around the calls
};

/// The conditions that determine a calibration, except the device's clock.
struct CalibrationState {
  int device = 0;
  Method method = Method::kAuto;
  std::optional<L2Lines> flush{};  ///< lines left by the flush before each call, if there is one
  bool held = false;               ///< whether the queue is held
  bool own_reference = true;       ///< convtime's own kernel rather than the caller's

  auto operator<=>(const CalibrationState&) const = default;
};

/// Run a calibration that may throw: a failed calibration must not lose the measurement. Returns no
/// overhead and the reason if it fails.
CONVTIME_API Outcome<Overhead> attempt(const std::function<Overhead()>& calibration);

/// Values by the rate of the device's clock.
template <typename Value>
class ByClock {
 public:
  /// Return the value for the same clock; none if the clock is unknown.
  std::optional<Value> find(double clock_hz) const {
    for (const auto& [known_hz, value] : values_) {
      if (is_same(known_hz, clock_hz)) {
        return value;
      }
    }
    return std::nullopt;
  }

  void put(double clock_hz, const Value& value) {
    if (!is_same(clock_hz, clock_hz)) {
      return;  // NaN: could never be found again
    }
    std::erase_if(values_, [&](const auto& known) { return is_same(known.first, clock_hz); });
    values_.emplace_back(clock_hz, value);
  }

 private:
  static bool is_same(double a_hz, double b_hz) {
    return a_hz <= (1 + kDeviceTraits.same_clock_share) * b_hz &&
           b_hz <= (1 + kDeviceTraits.same_clock_share) * a_hz;
  }

  std::vector<std::pair<double, Value>> values_;
};

/// Return whether a method's times include overhead that a calibration can find.
CONVTIME_API bool is_calibrated(Method method);

/// Determines the overhead of a method for a single kernel: its time for the reference, minus
/// CUPTI's time. The former is measured for each calibration, because the cost of a launch changes
/// within a process (by 0.7 us after a flush on an H200). The latter is measured once per clock.
/// Thread-safe.
class CONVTIME_API Calibrator {
 public:
  /// Times the reference with a method; may throw.
  using TimeReference = std::function<TimedReference(Method)>;

  /// `kernel_problem` is the reason why CUPTI must not be used; empty if it may be used. Throws
  /// std::runtime_error if CUPTI would be needed but must not be used, and any exception of
  /// `time_reference`.
  Overhead calibrate(const CalibrationState& state, const TimeReference& time_reference,
                     const std::string& kernel_problem);

  /// Return the result of the last calibration at that clock.
  std::optional<Overhead> last(const CalibrationState& state, double clock_hz);

 private:
  TimedReference time_kernel(const CalibrationState& state, double clock_hz,
                             const TimeReference& time_reference,
                             const std::string& kernel_problem);

  std::mutex mutex_;
  std::map<CalibrationState, ByClock<TimedReference>> kernels_;
  std::map<CalibrationState, ByClock<Overhead>> overheads_;
};

/// Subtract an overhead from all samples, including discarded ones. Results are not clamped at 0: a
/// call without a kernel takes less than one with a kernel, and noise around 0 has a median of 0.
CONVTIME_API void subtract(const Overhead& overhead, std::span<CandidateSamples> candidates);

/// Time the reference (TimingOptions::calibration_reference) with a method, under the options for
/// candidates except the stop rule: with their flush, stream, clock probe and, if `held`, their
/// hold. Waits for the device without the options' hooks. Throws if the method is unavailable.
CONVTIME_API TimedReference time_reference(Method method, const TimingOptions& options, bool held);

// Both functions wait for the device through the options' hooks. If no calibration is possible,
// they do not throw, and return no overhead and the reason. `held` says whether the samples' queue
// is held.

/// Return a method's overhead per sample at the device's present clock, from the last calibration
/// at that clock or from a new one.
Outcome<Overhead> expected_overhead(Method method, const TimingOptions& options, bool held,
                                    ClockProbe& probe);

/// Return a method's overhead per sample from a new calibration.
Outcome<Overhead> calibrate(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
