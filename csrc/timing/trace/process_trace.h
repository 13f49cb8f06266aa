#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/trace/cupti_session.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// What a process gave its devices to do.
struct ProcessWork {
  std::vector<DeviceActivity> activities;  ///< ordered by their start
  std::string faults;                      ///< what is wrong with their records; empty for nothing
};

/// Records what the process gives its devices to do, on every thread. There can be one at a time,
/// as there can be one CuptiSession. Times are in nanoseconds since it began.
class CONVTIME_API ProcessTrace {
 public:
  /// Waits for the current device. Throws std::runtime_error where CUPTI cannot be used.
  ProcessTrace();

  std::uint64_t now() const { return session_.clock().nanoseconds(CuptiSession::now()); }

  /// The calling thread, as activities have it.
  static std::uint32_t thread();

  /// What was issued until now, and done by the current device and `other_devices`, which are
  /// waited for. To be called once. Throws TraceLost where a profiler has taken CUPTI.
  ProcessWork take(std::span<const int> other_devices);

 private:
  CuptiSession session_;
  std::uint64_t began_;
};

}  // namespace convtime
