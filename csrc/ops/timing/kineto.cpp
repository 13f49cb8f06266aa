#include <kineto/libkineto.h>

#include "timing/trace/cupti_session.h"

namespace convtime::ops {
namespace {

/// Return true from the warm-up of a profile until the caller takes its records, regardless of who
/// started it.
bool kineto_is_active() {
  libkineto::LibkinetoApi& kineto = libkineto::api();
  return kineto.isProfilerInitialized() && kineto.activityProfiler().isActive();
}

[[maybe_unused]] const bool known_to_the_timing_layer = [] {
  set_profiler_check(kineto_is_active);
  return true;
}();

}  // namespace
}  // namespace convtime::ops
