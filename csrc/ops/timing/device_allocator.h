#pragma once

#include <cstddef>
#include <memory>

#include "core/export.h"

namespace convtime::ops {

/// A DeviceAllocator that uses PyTorch's allocator, for work on PyTorch's current stream.
CONVTIME_API std::shared_ptr<void> torch_device_memory(std::size_t bytes);

}  // namespace convtime::ops
