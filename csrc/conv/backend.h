#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <stdexcept>

#include "core/unique_handle.h"

namespace convtime::conv {

struct DescriptorTraits {
  using Handle = cudnnBackendDescriptor_t;
  static void release(Handle descriptor) noexcept {
    (void)cudnnBackendDestroyDescriptor(descriptor);
  }
};

/// A descriptor of cuDNN's backend API.
using Descriptor = UniqueHandle<DescriptorTraits>;

/// Thrown when a cuDNN call fails.
class CudnnError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throw CudnnError with `what` and cuDNN's error message.
void check_cudnn(cudnnStatus_t status, const char* what);

Descriptor make_descriptor(cudnnBackendDescriptorType_t type);

template <typename T>
void set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, const T* values, std::int64_t count) {
  check_cudnn(cudnnBackendSetAttribute(descriptor, name, type, count, values),
              "cudnnBackendSetAttribute");
}

/// Write at most `count` values of the attribute to `values` and return how many exist. For
/// descriptors, `values` must hold existing descriptors, which cuDNN fills in.
template <typename T>
std::int64_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, T* values, std::int64_t count) {
  std::int64_t found = 0;
  check_cudnn(cudnnBackendGetAttribute(descriptor, name, type, count, &found, values),
              "cudnnBackendGetAttribute");
  return found;
}

/// Return an attribute that has one value.
template <typename T>
T get_one(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
          cudnnBackendAttributeType_t type) {
  T value{};
  get_attribute(descriptor, name, type, &value, 1);
  return value;
}

/// Return the stream on which the handle's work is enqueued.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Return whether the stream is being captured into a CUDA graph.
bool is_capturing(cudaStream_t stream);

/// Throw CudaError if CUDA itself has failed: every later call in the process then fails, too.
void check_stream(cudaStream_t stream);

}  // namespace convtime::conv
