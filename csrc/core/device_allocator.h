#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace convtime {

/// Allocates that many bytes on the current device; the memory is freed with the last reference to
/// the result. If empty, CUDA's allocator (cudaMalloc) is used.
using DeviceAllocator = std::function<std::shared_ptr<void>(std::size_t bytes)>;

}  // namespace convtime
