#pragma once

#include <cupti_result.h>

#include <cstdio>
#include <string>

#include "core/cupti_error.h"

namespace convtime {
namespace detail {

/// Return the name of a result, or its number if CUPTI does not know it.
inline std::string cupti_result(
    CUptiResult status, decltype(&cuptiGetResultString) result_string = cuptiGetResultString) {
  const char* name = nullptr;
  result_string(status, &name);
  return name == nullptr ? std::to_string(status) : name;
}

inline std::string cupti_failure(const std::string& result, const std::string& call) {
  return "CUPTI call failed: " + call + " returned " + result;
}

inline CuptiError cupti_error(CUptiResult status, const char* call, const char* file, int line) {
  const std::string result = cupti_result(status);
  return {result, cupti_failure(result, call) + " at " + file + ":" + std::to_string(line)};
}

}  // namespace detail
}  // namespace convtime

/// Throw CuptiError with CUPTI's error message, the call and its source location.
#define CONVTIME_CUPTI_CHECK(call)                                                       \
  do {                                                                                   \
    const CUptiResult convtime_status = (call);                                          \
    if (convtime_status != CUPTI_SUCCESS) {                                              \
      throw ::convtime::detail::cupti_error(convtime_status, #call, __FILE__, __LINE__); \
    }                                                                                    \
  } while (false)

/// For destructors: print to stderr the message that CONVTIME_CUPTI_CHECK would have thrown.
#define CONVTIME_CUPTI_WARN(call)                                                              \
  do {                                                                                         \
    const CUptiResult convtime_status = (call);                                                \
    if (convtime_status != CUPTI_SUCCESS) {                                                    \
      std::fprintf(                                                                            \
          stderr, "convtime: %s\n",                                                            \
          ::convtime::detail::cupti_error(convtime_status, #call, __FILE__, __LINE__).what()); \
    }                                                                                          \
  } while (false)
