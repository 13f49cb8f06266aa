#pragma once

#include <cudnn.h>

namespace convtime::conv {

/// The stream that the handle's work goes to.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Whether a CUDA graph is being captured from the stream.
bool is_capturing(cudaStream_t stream);

/// Throws CudaError where CUDA itself has failed: every later call of the process does, too.
void check_stream(cudaStream_t stream);

}  // namespace convtime::conv
