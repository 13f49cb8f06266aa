#include "timing/counters/profiler_api.h"

#include <cstdio>
#include <string>

#include "core/cupti_check.h"

namespace convtime {
namespace {

std::string failure(const ProfilerApi& api, CUptiResult status, const char* call) {
  const char* text = nullptr;
  api.result_string(status, &text);
  return std::string("CUPTI call failed: ") + call + " returned " +
         (text == nullptr ? std::to_string(status) : text);
}

}  // namespace

void ProfilerApi::check(CUptiResult status, const char* call) const {
  if (status != CUPTI_SUCCESS) {
    throw CuptiError(status, failure(*this, status, call));
  }
}

void ProfilerApi::warn(CUptiResult status, const char* call) const noexcept {
  if (status != CUPTI_SUCCESS) {
    std::fprintf(stderr, "convtime: %s\n", failure(*this, status, call).c_str());
  }
}

}  // namespace convtime
