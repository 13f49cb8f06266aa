#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

namespace convtime::conv {

/// Return the stream on which the handle's work is enqueued.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Return whether the stream is being captured into a CUDA graph.
bool is_capturing(cudaStream_t stream);

/// Throw CudaError if CUDA itself has failed: every later call in the process then fails, too.
void check_stream(cudaStream_t stream);

}  // namespace convtime::conv
