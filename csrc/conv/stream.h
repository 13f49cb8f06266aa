#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

namespace convtime::conv {

/// The stream that the handle's work goes to.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Whether a CUDA graph is being captured from the stream.
bool is_capturing(cudaStream_t stream);

/// While it lives, this thread may do what would end a capture for being unsafe in one, whatever
/// stream is captured from and in whatever thread: load and unload kernels, allocate and free.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  /// Whether CUDA is gone already, as for threads that end after the main one.
  bool process_ends() const { return process_ends_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the mode from before
  bool process_ends_ = false;
};

/// Throws CudaError where CUDA itself has failed: every later call of the process does, too.
void check_stream(cudaStream_t stream);

}  // namespace convtime::conv
