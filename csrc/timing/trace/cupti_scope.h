#pragma once

#include <cupti.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "timing/trace/cupti_buffers.h"

namespace convtime {

/// An activity collection in CUPTI. When this object is destroyed, the collection ends and the sink
/// has received every record.
///
/// CUPTI has two versions of its activity API. In the global scope, one pair of buffer callbacks
/// serves the whole process. In the subscriber scope, each subscriber has separate buffers, and
/// several can collect at a time. A process that uses one scope cannot use the other.
class ActivityScope {
 public:
  virtual ~ActivityScope() = default;

  // These functions throw CuptiError.

  /// Stop and resume collecting.
  virtual void pause() = 0;
  virtual void resume() = 0;

  /// Make CUPTI return its buffers: those without running work, or all of its buffers.
  enum class Flush { kFinished, kAll };
  virtual void flush(Flush which) = 0;

  /// Make CUPTI return all of its buffers. Waits up to that long for running work and API calls,
  /// and then also takes their buffers.
  virtual void drain(std::chrono::milliseconds patience) noexcept = 0;

  /// Change nothing more, because another tool has taken over CUPTI: disabling or returning
  /// anything would affect that tool.
  virtual void abandon() noexcept = 0;
};

/// Collect records of these kinds, in one scope at a time. Throws CuptiError if CUPTI is
/// unavailable, with the name of the tool that uses it if CUPTI reports it.
std::unique_ptr<ActivityScope> open_activity_scope(std::span<const CUpti_ActivityKind> kinds,
                                                   RecordSink& sink);

/// Throw the reason why an opened scope records nothing, with the name of the tool that uses CUPTI
/// if CUPTI reports it.
[[noreturn]] void refuse_for_another_tool(std::span<const CUpti_ActivityKind> kinds);

/// Return whether a tool in this process has made CUPTI serve several subscribers.
bool subscribers_are_shared();

/// Return the current time on the clock of the open scope's records.
std::uint64_t activity_clock();

/// Return the calling thread's number in the records.
std::uint32_t activity_thread();

}  // namespace convtime
