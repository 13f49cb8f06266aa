#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "core/unique_handle.h"

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

namespace convtime {

inline int current_device() {
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

/// Makes a device current for the lifetime of this object.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : before_(current_device()) {
    CONVTIME_CUDA_CHECK(cudaSetDevice(device));
  }
  ~CurrentDevice() { CONVTIME_CUDA_WARN(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_;
};

struct CudaEventTraits {
  using Handle = cudaEvent_t;
  static void release(cudaEvent_t event) noexcept { CONVTIME_CUDA_WARN(cudaEventDestroy(event)); }
};
using CudaEvent = UniqueHandle<CudaEventTraits>;

inline CudaEvent make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  CONVTIME_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return CudaEvent(event);
}

/// Two events, and the time between them.
struct EventPair {
  CudaEvent start = make_event();
  CudaEvent stop = make_event();

  /// Both events must have been reached.
  double seconds() const {
    float milliseconds = 0;
    CONVTIME_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }
};

/// While it exists, this thread may make calls that would invalidate a capture on any stream in any
/// thread because they are unsafe there: load and unload kernels, allocate and free.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  /// Return whether CUDA is already gone, as for threads that end after the main thread.
  bool process_ends() const { return process_ends_; }

 private:
  void exchange() noexcept {
    const cudaError_t exchanged = cudaThreadExchangeStreamCaptureMode(&mode_);
    // The main thread may end the process at any moment of another thread's life.
    process_ends_ = exchanged == cudaErrorCudartUnloading;
    if (!process_ends_) {
      CONVTIME_CUDA_WARN(exchanged);
    }
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // after construction: the previous
                                                               // mode
  bool process_ends_ = false;
};

}  // namespace convtime
