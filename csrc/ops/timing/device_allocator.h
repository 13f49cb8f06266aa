#pragma once

#include <cstddef>
#include <memory>

#include "core/export.h"

namespace convtime::ops {

/// The DeviceAllocator of PyTorch's own, for work on its current stream.
CONVTIME_API std::shared_ptr<void> torch_device_memory(std::size_t bytes);

}  // namespace convtime::ops
