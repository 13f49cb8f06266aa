#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/export.h"
#include "timing/trace/attribution.h"

namespace convtime {

class ActivityScope;

/// Whose work a session's windows are of.
enum class TracedThreads {
  kOfTheCalls,  ///< that of the thread that makes the calls, and of those that work for it
  kEvery,
};

/// Collects what the device does and which API calls issued it, from construction to destruction,
/// through CUPTI's activity API. There can be one session at a time. Beside another tool there can
/// be one where that tool subscribes to CUPTI and shares it (see shared()), and none where it uses
/// the buffer callbacks that belong to the whole process (torch.profiler).
class CONVTIME_API CuptiSession {
 public:
  /// For the calls of this thread. Throws std::runtime_error where CUPTI cannot be used.
  explicit CuptiSession(TracedThreads threads = TracedThreads::kOfTheCalls);
  ~CuptiSession();
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  /// "cudaMemPrefetchAsync", of ApiCall::function.
  static std::string api_name(std::uint32_t function);

  /// Now, in ticks of the clock of API calls.
  static std::uint64_t now();

  /// What makes nanoseconds of these ticks, as those of activities are.
  const TraceClock& clock() const { return context_.clock; }

  /// What was issued in the windows, since the last call. Waits a little for records that CUPTI
  /// still holds. The device must have done the work; what other threads give it may still run.
  /// Throws TraceLost where a profiler has taken CUPTI.
  Attribution take(std::span<const Window> windows);

  /// From pause() to resume() nothing is recorded, nor can be taken. Throw TraceLost as take().
  void pause();
  void resume();

  /// Why CUPTI cannot be used in this process, whatever else it runs; nothing where it can.
  static std::optional<std::string> unavailable();

  /// Whether another tool has made CUPTI serve several in this process, each with records of its
  /// own. Where it has, a session does not disturb the others, whoever they are.
  static bool shared();

  /// Why no session can begin now: a profiler of this process records, or is about to. Empty where
  /// none does, and where tools share CUPTI.
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

  std::mutex mutex_;  // of all below: another thread's profiler may take CUPTI at any time
  std::unique_ptr<ActivityScope> scope_;
  std::string lost_;  // why there is no scope any more
  TraceContext context_;
  TraceRecords records_;  // of the windows that are being waited for
  TraceMemory memory_;
};

/// CUPTI's turn for hardware counters. Reading them makes every kernel of the process take longer,
/// so that no session begins while it lives.
class CONVTIME_API CountingTurn {
 public:
  /// Throws std::runtime_error while a session is open, hardware counters are read, or a profiler
  /// of this process records, whether or not it shares CUPTI.
  CountingTurn();
  ~CountingTurn();
  CountingTurn(const CountingTurn&) = delete;
  CountingTurn& operator=(const CountingTurn&) = delete;

  /// Throws std::runtime_error where a profiler has begun since.
  void require() const;
};

/// Keeps CUPTI free while a profiler takes it: ends the session that is open, before the profiler
/// would get its buffers, and lets none begin. Does nothing where tools share CUPTI.
class CONVTIME_API MakeWay {
 public:
  MakeWay();
  ~MakeWay();
  MakeWay(const MakeWay&) = delete;
  MakeWay& operator=(const MakeWay&) = delete;
};

/// Sets what tells whether a profiler records through the process's one pair of buffer callbacks,
/// or is about to. For one that cannot be made to call MakeWay: kineto on demand.
CONVTIME_API void set_profiler_check(bool (*is_active)());

}  // namespace convtime
