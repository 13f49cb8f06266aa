#pragma once

#include <cupti_result.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace convtime {

/// Thrown when a CUPTI call fails.
class CuptiError : public std::runtime_error {
 public:
  CuptiError(CUptiResult status, const std::string& text)
      : std::runtime_error(text), status_(status) {}

  CUptiResult status() const { return status_; }

 private:
  CUptiResult status_;
};

namespace detail {

inline std::string cupti_failure(CUptiResult status, const char* call, const char* file, int line) {
  const char* text = nullptr;
  cuptiGetResultString(status, &text);
  return std::string("CUPTI call failed: ") + call + " returned " +
         (text == nullptr ? std::to_string(status) : text) + " at " + file + ":" +
         std::to_string(line);
}

}  // namespace detail
}  // namespace convtime

/// Throw CuptiError with CUPTI's error message, the call and its source location.
#define CONVTIME_CUPTI_CHECK(call)                                                        \
  do {                                                                                    \
    const CUptiResult convtime_status = (call);                                           \
    if (convtime_status != CUPTI_SUCCESS) {                                               \
      throw ::convtime::CuptiError(                                                       \
          convtime_status,                                                                \
          ::convtime::detail::cupti_failure(convtime_status, #call, __FILE__, __LINE__)); \
    }                                                                                     \
  } while (false)

/// For destructors: print to stderr the message that CONVTIME_CUPTI_CHECK would have thrown.
#define CONVTIME_CUPTI_WARN(call)                                                                 \
  do {                                                                                            \
    const CUptiResult convtime_status = (call);                                                   \
    if (convtime_status != CUPTI_SUCCESS) {                                                       \
      std::fprintf(                                                                               \
          stderr, "convtime: %s\n",                                                               \
          ::convtime::detail::cupti_failure(convtime_status, #call, __FILE__, __LINE__).c_str()); \
    }                                                                                             \
  } while (false)
