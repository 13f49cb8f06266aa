#include "conv/backend.h"

#include <array>

#include "core/cuda.h"

namespace convtime::conv {

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) {
    return;
  }
  std::array<char, 1024> details{};
  cudnnGetLastErrorString(details.data(), details.size());
  throw CudnnError(std::string(what) + " returned " + cudnnGetErrorString(status) +
                   (details[0] == '\0' ? "" : std::string(" (") + details.data() + ")"));
}

Descriptor make_descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  check_cudnn(cudnnBackendCreateDescriptor(type, &descriptor), "cudnnBackendCreateDescriptor");
  return Descriptor(descriptor);
}

cudaStream_t stream_of(cudnnHandle_t handle) {
  cudaStream_t stream = nullptr;
  check_cudnn(cudnnGetStream(handle, &stream), "cudnnGetStream");
  return stream;
}

bool is_capturing(cudaStream_t stream) {
  // CUDA never captures the default stream, and the query would add time to each call.
  if (stream == nullptr || stream == cudaStreamLegacy) {
    return false;
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CONVTIME_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void check_stream(cudaStream_t stream) {
  if (is_capturing(stream)) {
    return;  // a query would invalidate the capture
  }
  const cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // not an error, but recorded as the last one
    return;
  }
  CONVTIME_CUDA_CHECK(status);
}

}  // namespace convtime::conv
