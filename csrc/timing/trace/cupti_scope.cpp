#include "timing/trace/cupti_scope.h"

#include <pthread.h>
#include <unistd.h>

#include <stdexcept>

#include "core/cupti_check.h"
#include "timing/trace/cupti_global_scope.h"
#include "timing/trace/cupti_subscriber_scope.h"

namespace convtime {
namespace {

bool is_of_the_other_scope(const CuptiError& error) {
  return error.status() == CUPTI_ERROR_NOT_COMPATIBLE ||
         error.status() == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
}

}  // namespace

/// The global scope, unless another tool has done away with it by subscribing.
///
/// The first subscriber decides for the whole process which scope there is from then on, and
/// nothing promises that it takes that back when it unsubscribes. kineto is a client of the global
/// scope that sets itself up once a process: after a subscriber it might never record again. So a
/// subscriber is never the first here, but where nothing is recorded, to learn who has CUPTI.
std::unique_ptr<ActivityScope> open_activity_scope(std::span<const CUpti_ActivityKind> kinds,
                                                   RecordSink& sink) {
  record_sink = &sink;
  try {
    return open_global_scope(kinds);
  } catch (const CuptiError& error) {
    if (!is_of_the_other_scope(error) || sharing() == Sharing::kNobodyAsked) {
      throw;
    }
  }
  return open_subscriber_scope(kinds);  // or says whose CUPTI it is
}

void refuse_for_another_tool(std::span<const CUpti_ActivityKind> kinds) {
  open_subscriber_scope(kinds);  // throws with its name, if there is one
  throw std::runtime_error("CUPTI records nothing, as if another tool of this process had it");
}

bool subscribers_are_shared() { return sharing() == Sharing::kAllowed; }

std::uint64_t activity_clock() {
  std::uint64_t now = 0;
  CONVTIME_CUPTI_CHECK(read_activity_clock(now));
  return now;
}

std::uint32_t activity_thread() {
  CUpti_ActivityThreadIdType type = CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;
  CONVTIME_CUPTI_CHECK(cuptiGetThreadIdType(&type));
  return static_cast<std::uint32_t>(type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM ? gettid()
                                                                                 : pthread_self());
}

}  // namespace convtime
