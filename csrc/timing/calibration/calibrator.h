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
#include "timing/device_traits.h"
#include "timing/judge/overhead.h"
#include "timing/options.h"
#include "timing/samples.h"

namespace convtime {

inline constexpr double kUnknownClockHz = std::numeric_limits<double>::quiet_NaN();

/// What a call that issues one kernel took.
struct TimedReference {
  double seconds = 0;  ///< median
  double uncertainty_seconds = 0;
  double clock_hz = kUnknownClockHz;  ///< of the device, around the calls
};

/// What a calibration depends on, beside the device's clock.
struct CalibrationState {
  int device = 0;
  Method method = Method::kAuto;
  std::optional<L2Lines> flush{};  ///< what the one before each call leaves, where there is one
  bool held = false;               ///< whether the queue is held
  bool own_reference = true;       ///< convtime's kernel, and not one of the caller's

  auto operator<=>(const CalibrationState&) const = default;
};

/// What a method adds to each time; nothing, and why, where that cannot be known.
struct Calibration {
  std::optional<Overhead> overhead;
  std::string failure;
};

/// Of something that may throw: a calibration that fails is no reason to lose what was measured.
CONVTIME_API Calibration attempt(const std::function<Overhead()>& calibration);

/// Values that belong to a rate of the device's clock.
template <typename Value>
class ByClock {
 public:
  /// Of the same clock; none where the clock is not known.
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
      return;  // NaN: nobody finds it again
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

/// Whether what a method says contains something of its own, which a calibration finds.
CONVTIME_API bool is_calibrated(Method method);

/// Finds what a method adds to a single kernel: what it says of the reference, less the time that
/// CUPTI has for it. The former is measured for each calibration, since what a launch costs changes
/// in a process (by 0.7 us after a flush on an H200); the latter once for each clock. Safe to use
/// from several threads.
class CONVTIME_API Calibrator {
 public:
  /// Times the reference by a method; may throw.
  using TimeReference = std::function<TimedReference(Method)>;

  /// `kernel_problem` says why CUPTI must not be used; empty where it may be. Throws
  /// std::runtime_error where it would have to be, and what `time_reference` throws.
  Overhead calibrate(const CalibrationState& state, const TimeReference& time_reference,
                     const std::string& kernel_problem);

  /// What the last calibration found at that clock.
  std::optional<Overhead> last(const CalibrationState& state, double clock_hz);

 private:
  TimedReference time_kernel(const CalibrationState& state, double clock_hz,
                             const TimeReference& time_reference,
                             const std::string& kernel_problem);

  std::mutex mutex_;
  std::map<CalibrationState, ByClock<TimedReference>> kernels_;
  std::map<CalibrationState, ByClock<Overhead>> overheads_;
};

/// Takes an overhead off all samples, those that were discarded too. Nothing is cut off at 0: a
/// call without a kernel takes less than one with, and what noise makes of 0 has a median of 0.
CONVTIME_API void subtract(const Overhead& overhead, std::span<CandidateSamples> candidates);

}  // namespace convtime
