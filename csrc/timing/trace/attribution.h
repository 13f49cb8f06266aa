#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/export.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// What a call of the CUDA runtime or driver gives a device to do.
enum class ApiKind : std::uint8_t {
  kLaunch,        ///< a kernel
  kGraphLaunch,   ///< the nodes of a graph
  kTransfer,      ///< a copy or a memset, or nothing where there are no bytes
  kUnrecorded,    ///< something that the tracer has no record of, such as a prefetch
  kBeginCapture,  ///< nothing: what its thread issues from here on only becomes part of a graph
  kEndCapture,    ///< nothing
  kOther,         ///< nothing
};

/// A call of the CUDA runtime or driver, on any thread.
struct ApiCall {
  std::uint64_t start = 0;  ///< in ticks of the tracer's clock
  std::uint32_t correlation = 0;
  std::uint32_t thread = 0;    ///< as the tracer numbers them
  std::uint32_t function = 0;  ///< likewise
  ApiKind kind = ApiKind::kOther;
  bool failed = false;
};

/// What a tracer saw.
struct TraceRecords {
  std::vector<DeviceActivity> activities;  ///< their times in ticks of the tracer's clock
  std::vector<ApiCall> api_calls;
  std::size_t lost = 0;  ///< times that the tracer said it had lost some
};

/// The stretch of host time in which a call was prepared and made, in the ticks of API calls.
struct Window {
  std::uint64_t prepare = 0;  ///< where its preparation began
  std::uint64_t begin = 0;    ///< where the call itself began
  std::uint64_t end = 0;
  const void* of = nullptr;  ///< what was called; calls of the same mostly issue the same
};

/// What is wrong with records.
struct TraceFaults {
  std::size_t missing = 0;      ///< API calls of a window without the activity they issued
  std::size_t unissued = 0;     ///< activities without the API call that issued them
  std::size_t uncollected = 0;  ///< activities whose start or end the tracer did not get
  std::size_t reversed = 0;     ///< that end before they begin
  std::size_t early = 0;        ///< that begin before they were issued
  std::size_t late = 0;         ///< that end after they were read
  std::size_t lost = 0;         ///< TraceRecords::lost

  std::size_t count() const {
    return missing + unissued + uncollected + reversed + early + late + lost;
  }
  /// "2 launches without their record, 1 record that ends before it begins"
  CONVTIME_API std::string describe() const;
};

/// A call of the runtime or driver that gives a device work without a record.
struct UnrecordedWork {
  std::size_t window = 0;
  std::uint32_t function = 0;  ///< ApiCall::function
};

/// Whose work the activities are.
struct Attribution {
  /// For each window, the activities that were issued in it, ordered by their start.
  std::vector<std::vector<DeviceActivity>> calls;
  TraceFaults faults;
  std::vector<UnrecordedWork> unrecorded;
  /// Pieces of work that other threads of the process issued meanwhile, on their own account.
  std::size_t of_other_threads = 0;
};

/// What is known of a session's earlier records.
struct TraceMemory {
  /// The highest correlation of an API call.
  std::uint32_t read_up_to = 0;
  /// Transfers that have been seen to have bytes, each as the step of a call that it is.
  std::unordered_set<std::uint64_t> filled;
  /// Threads that have been seen to issue work while no call was prepared or made.
  std::unordered_set<std::uint32_t> other_threads;
};

/// The clock of a tracer's records.
struct TraceClock {
  std::uint64_t origin = 0;  ///< the tick that nanoseconds are counted from
  double ticks_per_ns = 1;

  std::uint64_t nanoseconds(std::uint64_t tick) const {
    const std::uint64_t since = tick > origin ? tick - origin : 0;
    return ticks_per_ns == 1
               ? since
               : static_cast<std::uint64_t>(static_cast<double>(since) / ticks_per_ns + 0.5);
  }
};

/// How to read records.
struct TraceContext {
  TraceClock clock;
  std::uint32_t own_thread = 0;  ///< the thread that makes the calls
  std::uint64_t read_at = 0;     ///< the tick at which the records were read
  /// Whether the windows are of all that the process does, on whatever thread's account.
  bool every_thread = false;
};

/// By how much the stamps of the host and of a device may differ: kernels begin 2 us and more after
/// their launch, and a device's clock is matched with the host's from time to time only.
inline constexpr double kStampToleranceNs = 20'000;

/// Assigns the activities to the windows, which follow each other in time, with times in
/// nanoseconds from the clock's origin, and checks that none is missing. Activities are matched by
/// the API call that issued them, so that work counts that other threads issued for the call
/// (autograd's), and work that runs later than its window.
///
/// A thread that issues work while no call is prepared or made works on its own account: none of
/// its work is any call's, unless the windows are of every thread. A transfer without a record is
/// taken to have had no bytes, as those that cuDNN and cuBLAS issue, unless nothing else of its
/// call is there, or another call of the same callable had a record of it at the same place. Work
/// of API calls that were read before is passed over.
CONVTIME_API Attribution attribute(std::span<const Window> windows, const TraceRecords& records,
                                   const TraceContext& context, const TraceMemory& before);

/// Adds what records tell that have been attributed.
CONVTIME_API void remember(std::span<const Window> windows, const TraceRecords& records,
                           const TraceContext& context, TraceMemory& memory);

}  // namespace convtime
