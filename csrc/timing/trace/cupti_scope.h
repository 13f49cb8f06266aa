#pragma once

#include <cupti.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "timing/trace/cupti_buffers.h"

namespace convtime {

/// What CUPTI was made to collect; ends with this object, with every record taken by the sink.
///
/// CUPTI has its activity API twice. In the global scope, one pair of buffer callbacks serves the
/// whole process. In the subscriber scope, each subscriber has buffers of its own, and several can
/// collect at a time. A process that uses the one is refused the other.
class ActivityScope {
 public:
  virtual ~ActivityScope() = default;

  // These throw CuptiError.

  /// Stops collecting, and collects again.
  virtual void pause() = 0;
  virtual void resume() = 0;

  /// Has CUPTI hand over its buffers: those without work that still runs, or all of them.
  enum class Flush { kFinished, kAll };
  virtual void flush(Flush which) = 0;

  /// Has CUPTI hand over all of its buffers. Waits up to that long for work and API calls that
  /// still run, and then takes theirs, too.
  virtual void drain(std::chrono::milliseconds patience) noexcept = 0;

  /// Leaves all as it is, for another tool that has taken CUPTI over: what this scope would turn
  /// off or hand back would be the other's.
  virtual void abandon() noexcept = 0;
};

/// Collects records of these kinds, one scope at a time. Throws CuptiError where CUPTI cannot be
/// had, with the name of the tool that has it where CUPTI says so.
std::unique_ptr<ActivityScope> open_activity_scope(std::span<const CUpti_ActivityKind> kinds,
                                                   RecordSink& sink);

/// For a scope that was opened and records nothing: throws what keeps it from that, with the name
/// of the tool that has CUPTI where CUPTI says so.
[[noreturn]] void refuse_for_another_tool(std::span<const CUpti_ActivityKind> kinds);

/// Whether a tool in this process has made CUPTI serve several subscribers.
bool subscribers_are_shared();

/// Now, on the clock of the records of the open scope.
std::uint64_t activity_clock();

/// The calling thread, as records number it.
std::uint32_t activity_thread();

}  // namespace convtime
