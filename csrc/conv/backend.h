#pragma once

#include <cudnn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

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

}  // namespace convtime::conv
