#include "timing/counters/profiler_api.h"

#include <cstdio>
#include <string>

#include "core/cupti_check.h"

namespace convtime {
namespace {

CuptiError error_of(const ProfilerApi& api, CUptiResult status, const char* call) {
  const std::string result = detail::cupti_result(status, api.result_string);
  return {result, detail::cupti_failure(result, call)};
}

}  // namespace

void ProfilerApi::check(CUptiResult status, const char* call) const {
  if (status != CUPTI_SUCCESS) {
    throw error_of(*this, status, call);
  }
}

void ProfilerApi::warn(CUptiResult status, const char* call) const noexcept {
  if (status != CUPTI_SUCCESS) {
    std::fprintf(stderr, "convtime: %s\n", error_of(*this, status, call).what());
  }
}

}  // namespace convtime
