#include "timing/counters/profiler_libraries.h"

#include <cupti.h>
#include <dlfcn.h>

#include <filesystem>

namespace convtime {

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
