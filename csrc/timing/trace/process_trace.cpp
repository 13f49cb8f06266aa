#include "timing/trace/process_trace.h"

#include <utility>

#include "core/synchronize.h"
#include "timing/trace/attribution.h"
#include "timing/trace/cupti_scope.h"

namespace convtime {

ProcessTrace::ProcessTrace() : session_(TracedThreads::kEvery), began_(CuptiSession::now()) {}

std::uint32_t ProcessTrace::thread() { return activity_thread(); }

ProcessWork ProcessTrace::take(std::span<const int> other_devices) {
  // Work that other threads issue from here on may still be running, and is not in this trace.
  const Window window{.prepare = 0, .begin = began_, .end = CuptiSession::now()};
  synchronize(other_devices);
  Attribution attribution = session_.take({&window, 1});
  return {std::move(attribution.calls.front()), attribution.faults.describe()};
}

}  // namespace convtime
