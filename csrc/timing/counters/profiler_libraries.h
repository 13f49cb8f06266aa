#pragma once

#include <string>

namespace convtime {

/// Load the libraries that CUPTI needs for counting, from CUPTI's own folder, and never unload
/// them. CUPTI requests them by name only. The system's loader does not search that folder and may
/// find the libraries of another toolkit, whose structures differ. Returns why one cannot be
/// loaded; empty if all are.
std::string load_profiler_libraries();

}  // namespace convtime
