#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/export.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// Thrown when device activities that could be recorded until now no longer can, or not completely.
class TraceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The kind of device work that a CUDA runtime or driver call issues.
enum class ApiKind : std::uint8_t {
  kLaunch,        ///< a kernel
  kGraphLaunch,   ///< the nodes of a graph
  kTransfer,      ///< a copy or a memset; no work if there are no bytes
  kUnrecorded,    ///< work without a record in the tracer, such as a prefetch
  kBeginCapture,  ///< no work: the thread's subsequent calls only become part of a graph
  kEndCapture,    ///< no work
  kOther,         ///< no work
};

/// A call of the CUDA runtime or driver, on any thread.
struct ApiCall {
  std::uint64_t start = 0;  ///< in ticks of the tracer's clock
  std::uint32_t correlation = 0;
  std::uint32_t thread = 0;    ///< the tracer's number
  std::uint32_t function = 0;  ///< the tracer's number
  ApiKind kind = ApiKind::kOther;
  bool failed = false;
};

/// The records of a tracer.
struct TraceRecords {
  std::vector<DeviceActivity> activities;  ///< times in ticks of the tracer's clock
  std::vector<ApiCall> api_calls;
  std::size_t lost = 0;  ///< number of times that the tracer reported lost records
};

/// The interval of host time in which a call was prepared and made, in the ticks of API calls.
struct Window {
  std::uint64_t prepare = 0;  ///< start of the preparation
  std::uint64_t begin = 0;    ///< start of the call itself
  std::uint64_t end = 0;
  const void* of = nullptr;  ///< identifies the callable; its calls usually issue the same work
};

/// The faults of records.
struct TraceFaults {
  std::size_t missing = 0;      ///< API calls in a window whose activity has no record
  std::size_t unissued = 0;     ///< activities without the API call that issued them
  std::size_t uncollected = 0;  ///< activities whose start or end the tracer did not get
  std::size_t reversed = 0;     ///< activities that end before they begin
  std::size_t early = 0;        ///< activities that begin before they were issued
  std::size_t late = 0;         ///< activities that end after they were read
  std::size_t lost = 0;         ///< TraceRecords::lost

  std::size_t count() const {
    return missing + unissued + uncollected + reversed + early + late + lost;
  }
  /// "2 launches without their record, 1 record that ends before it begins"
  CONVTIME_API std::string describe() const;
};

/// A runtime or driver call that issues device work without a record.
struct UnrecordedWork {
  std::size_t window = 0;
  std::uint32_t function = 0;  ///< ApiCall::function
};

/// The assignment of activities to windows.
struct Attribution {
  /// For each window, the activities that were issued in it, ordered by start time.
  std::vector<std::vector<DeviceActivity>> calls;
  TraceFaults faults;
  std::vector<UnrecordedWork> unrecorded;
  /// Activities that other threads of the process issued independently during the windows.
  std::size_t of_other_threads = 0;
};

/// Knowledge from a session's earlier records.
struct TraceMemory {
  /// The highest correlation ID of an API call.
  std::uint32_t read_up_to = 0;
  /// Transfers known to have bytes, identified by their step within a call.
  std::unordered_set<std::uint64_t> filled;
  /// Threads known to issue work while no call was prepared or made.
  std::unordered_set<std::uint32_t> other_threads;
};

/// The clock of a tracer's records.
struct TraceClock {
  std::uint64_t origin = 0;  ///< the tick at which nanoseconds are zero
  double ticks_per_ns = 1;

  std::uint64_t nanoseconds(std::uint64_t tick) const {
    const std::uint64_t since = tick > origin ? tick - origin : 0;
    return ticks_per_ns == 1
               ? since
               : static_cast<std::uint64_t>(static_cast<double>(since) / ticks_per_ns + 0.5);
  }
};

/// The context for interpreting records.
struct TraceContext {
  TraceClock clock;
  std::uint32_t own_thread = 0;  ///< the thread that makes the calls
  std::uint64_t read_at = 0;     ///< the tick at which the records were read
  /// Whether the windows include all work of the process, independent of the thread.
  bool every_thread = false;
};

/// The tolerance between the timestamps of the host and a device: kernels begin 2 us and more after
/// their launch, and a device's clock is only occasionally synchronized with the host's.
inline constexpr double kStampToleranceNs = 20'000;

/// Assign the activities to the windows, which follow each other in time, with times in nanoseconds
/// from the clock's origin, and check that none is missing. Activities are matched by the API call
/// that issued them. This includes work that other threads issued for the call (autograd's), and
/// work that runs later than its window.
///
/// A thread that issues work while no call is prepared or made is independent: its work belongs to
/// no call, unless the windows are of every thread. A transfer without a record is assumed to have
/// had no bytes, like transfers that cuDNN and cuBLAS issue. The exceptions are calls without any
/// other work, and transfers that had a record at the same position in another call of the same
/// callable. Work of API calls that were read before is skipped.
CONVTIME_API Attribution attribute(std::span<const Window> windows, const TraceRecords& records,
                                   const TraceContext& context, const TraceMemory& before);

/// Update the memory with records that have been attributed.
CONVTIME_API void remember(std::span<const Window> windows, const TraceRecords& records,
                           const TraceContext& context, TraceMemory& memory);

}  // namespace convtime
