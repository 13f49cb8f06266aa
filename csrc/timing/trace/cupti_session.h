#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/trace/attribution.h"
#include "timing/trace/device_activity.h"

namespace convtime {

class ActivityScope;

/// The threads whose work a session's windows include.
enum class TracedThreads {
  kOfTheCalls,  ///< the thread that makes the calls, and threads that work for it
  kEvery,
};

/// Collects the device's activities and the API calls that issued them, from construction to
/// destruction, through CUPTI's activity API. Only one session can exist at a time. A session can
/// coexist with another tool that subscribes to CUPTI and shares it (see shared()), but not with a
/// tool that uses the process-wide buffer callbacks (torch.profiler).
class CONVTIME_API CuptiSession {
 public:
  /// For the calls of this thread. Throws std::runtime_error if CUPTI cannot be used.
  explicit CuptiSession(TracedThreads threads = TracedThreads::kOfTheCalls);
  ~CuptiSession();
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  /// Return the name of ApiCall::function, e.g. "cudaMemPrefetchAsync".
  static std::string api_name(std::uint32_t function);

  /// Return the current time in ticks of the clock of API calls.
  static std::uint64_t now();

  /// Return the conversion of these ticks to nanoseconds, the unit of activities.
  const TraceClock& clock() const { return context_.clock; }

  /// Return the work issued in the windows since the last call. Waits a little for records that
  /// CUPTI still holds. The device must have done the calls' work; other threads' work may still be
  /// running. Throws TraceLost if a profiler has taken CUPTI.
  Attribution take(std::span<const Window> windows);

  /// Between pause() and resume(), nothing is recorded, and nothing can be taken. Both throw
  /// TraceLost like take().
  void pause();
  void resume();

  /// Return why CUPTI cannot be used in this process, independent of other tools; empty if it can.
  static std::string unavailable();

  /// Return whether another tool has made CUPTI serve several tools in this process, each with
  /// separate records. A session then does not disturb the other tools.
  static bool shared();

  /// Return why no session can start now: a profiler of this process records, or is about to. Empty
  /// if none does, and if tools share CUPTI.
  static std::string taken();

 private:
  friend class MakeWay;

  void open(TracedThreads threads);
  void check_records_arrive();
  Attribution take_complete(std::span<const Window> windows);
  Attribution read(std::span<const Window> windows);
  bool has_api_call_since(std::uint64_t tick) const;
  template <typename Use>
  auto with_scope(Use use);
  void give_way(const std::string& reason);
  void require_open();

  std::mutex mutex_;  // guards all members below: another thread's profiler may take CUPTI at any
                      // time
  std::unique_ptr<ActivityScope> scope_;
  std::string lost_;  // why there is no scope anymore
  TraceContext context_;
  TraceRecords records_;  // of the windows for which take() waits
  TraceMemory memory_;
};

/// Reserves CUPTI for hardware counters. Reading them slows down every kernel of the process, so no
/// session can start during its lifetime.
class CONVTIME_API CountingTurn {
 public:
  /// Throws std::runtime_error while a session is open, hardware counters are being read, or a
  /// profiler of this process records, even if that profiler shares CUPTI.
  CountingTurn();
  ~CountingTurn();
  CountingTurn(const CountingTurn&) = delete;
  CountingTurn& operator=(const CountingTurn&) = delete;

  /// Throw std::runtime_error if a profiler has started since.
  void require() const;
};

/// Keeps CUPTI free while a profiler uses it: ends the open session, before the profiler would get
/// its buffers, and prevents new ones. Has no effect if tools share CUPTI.
class CONVTIME_API MakeWay {
 public:
  MakeWay();
  ~MakeWay();
  MakeWay(const MakeWay&) = delete;
  MakeWay& operator=(const MakeWay&) = delete;
};

/// Set the function that returns whether a profiler records through the process-wide buffer
/// callbacks, or is about to. For profilers that cannot call MakeWay: kineto on demand.
CONVTIME_API void set_profiler_check(bool (*is_active)());

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
