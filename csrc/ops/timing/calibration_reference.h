#pragma once

#include <memory>

#include "core/export.h"
#include "timing/callable.h"

namespace convtime::ops {

/// A small elementwise kernel of PyTorch's, on the current device and stream.
CONVTIME_API std::unique_ptr<Callable> torch_calibration_reference();

}  // namespace convtime::ops
