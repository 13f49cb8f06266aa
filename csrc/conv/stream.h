#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

namespace convtime::conv {

/// Return the stream on which the handle's work is enqueued.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Return whether the stream is being captured into a CUDA graph.
bool is_capturing(cudaStream_t stream);

/// While it exists, this thread may make calls that would invalidate a capture on any stream in any
/// thread because they are unsafe there: load and unload kernels, allocate and free.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  /// Return whether CUDA is already gone, as for threads that end after the main thread.
  bool process_ends() const { return process_ends_; }

 private:
  void exchange() noexcept;

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // after construction: the previous
                                                               // mode
  bool process_ends_ = false;
};

/// Throw CudaError if CUDA itself has failed: every later call in the process then fails, too.
void check_stream(cudaStream_t stream);

}  // namespace convtime::conv
