#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda_check.h"

namespace convtime {

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
