#include "timing/trace/cupti_scope.h"

#include <pthread.h>
#include <unistd.h>

#include <stdexcept>

#include "core/cupti_check.h"

namespace convtime {
namespace {

bool is_of_the_other_scope(const CuptiError& error) {
  return error.result() == detail::cupti_result(CUPTI_ERROR_NOT_COMPATIBLE) ||
         error.result() == detail::cupti_result(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
}

}  // namespace

/// Open the global scope, unless another tool has disabled it by subscribing.
///
/// The first subscriber determines the scope for the whole process, and CUPTI does not document
/// that unsubscribing reverts this. kineto uses the global scope and initializes once per process:
/// after a subscriber it might never record again. So convtime never subscribes first, except if
/// nothing is recorded, to find out which tool uses CUPTI.
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
  return open_subscriber_scope(kinds);  // or throws with the name of the tool that uses CUPTI
}

void refuse_for_another_tool(std::span<const CUpti_ActivityKind> kinds) {
  open_subscriber_scope(kinds);  // throws with its name, if there is one
  throw std::runtime_error("CUPTI records nothing; another tool of this process may be using it");
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
