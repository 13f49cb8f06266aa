#include "timing/counters/profiler_api.h"

#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
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

std::string load_profiler_libraries() {
  Dl_info cupti{};
  const bool found = dladdr(reinterpret_cast<void*>(&cuptiGetVersion), &cupti) != 0;
  const std::filesystem::path folder =
      found ? std::filesystem::path(cupti.dli_fname).parent_path() : std::filesystem::path();
  for (const char* const name : {"libnvperf_host.so", "libnvperf_target.so"}) {
    // Some distributions have them in other folders.
    if (dlopen((folder / name).c_str(), RTLD_LAZY) == nullptr &&
        dlopen(name, RTLD_LAZY) == nullptr) {
      const char* const why = dlerror();
      return std::string("cannot load ") + name + ", which CUPTI needs for counting (" +
             (why == nullptr ? "unknown reason" : why) + "): reinstall the CUPTI package";
    }
  }
  return "";
}

}  // namespace convtime
