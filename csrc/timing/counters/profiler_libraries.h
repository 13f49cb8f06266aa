#pragma once

#include <string>

namespace convtime {

/// Loads the libraries that CUPTI counts with, for good: those that lie beside CUPTI itself. CUPTI
/// asks for them by name alone, for which the system's loader does not look there, and may find
/// another toolkit's, whose structures are others. Returns why one cannot be loaded; empty where
/// all are.
std::string load_profiler_libraries();

}  // namespace convtime
