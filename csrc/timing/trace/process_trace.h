#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/trace/cupti_session.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// The device work of a process.
struct ProcessWork {
  std::vector<DeviceActivity> activities;  ///< ordered by start time
  std::string faults;                      ///< the faults of their records; empty if there are none
};

/// Records the device work of the process on every thread. Only one trace can exist at a time,
/// because it uses a CuptiSession. Times are in nanoseconds since it started.
class CONVTIME_API ProcessTrace {
 public:
  /// Waits for the current device. Throws std::runtime_error if CUPTI cannot be used.
  ProcessTrace();

  std::uint64_t now() const { return session_.clock().nanoseconds(CuptiSession::now()); }

  /// Return the calling thread's number in the activities.
  static std::uint32_t thread();

  /// Wait for the current device and `other_devices`, and return the work that was issued until
  /// now. Call this once. Throws TraceLost if a profiler has taken CUPTI.
  ProcessWork take(std::span<const int> other_devices);

 private:
  CuptiSession session_;
  std::uint64_t began_;
};

}  // namespace convtime
