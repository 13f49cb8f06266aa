#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace convtime {

/// Gives so many bytes of the current device's memory, which are free again once nobody holds what
/// it returns. Where none is given, CUDA's own (cudaMalloc).
using DeviceAllocator = std::function<std::shared_ptr<void>(std::size_t bytes)>;

}  // namespace convtime
