#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace convtime {

/// The exception that CONVTIME_CUDA_CHECK throws.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t status, const std::string& what)
      : std::runtime_error(what), status_(status) {}

  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_;
};

namespace detail {

inline std::string cuda_failure(cudaError_t status, const char* call, const char* file, int line) {
  // Clear the error so that an unrelated later call does not report it again.
  (void)cudaGetLastError();
  return std::string("CUDA call failed: ") + call + " returned " + cudaGetErrorName(status) + " (" +
         cudaGetErrorString(status) + ") at " + file + ":" + std::to_string(line);
}

}  // namespace detail
}  // namespace convtime

/// Throw CudaError with CUDA's error message, the call and its source location.
#define CONVTIME_CUDA_CHECK(call)                                                        \
  do {                                                                                   \
    const cudaError_t convtime_status = (call);                                          \
    if (convtime_status != cudaSuccess) {                                                \
      throw ::convtime::CudaError(                                                       \
          convtime_status,                                                               \
          ::convtime::detail::cuda_failure(convtime_status, #call, __FILE__, __LINE__)); \
    }                                                                                    \
  } while (false)

/// For destructors: print to stderr the message that CONVTIME_CUDA_CHECK would have thrown.
#define CONVTIME_CUDA_WARN(call)                                                                 \
  do {                                                                                           \
    const cudaError_t convtime_status = (call);                                                  \
    if (convtime_status != cudaSuccess) {                                                        \
      std::fprintf(                                                                              \
          stderr, "convtime: %s\n",                                                              \
          ::convtime::detail::cuda_failure(convtime_status, #call, __FILE__, __LINE__).c_str()); \
    }                                                                                            \
  } while (false)
