#include "conv/backend.h"

#include <array>

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

}  // namespace convtime::conv
