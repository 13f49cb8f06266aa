#pragma once

#include <memory>

#include "core/export.h"
#include "timing/callable.h"

namespace convtime::ops {

/// Return a small elementwise PyTorch kernel, for the current device and stream.
CONVTIME_API std::unique_ptr<Callable> torch_calibration_reference();

}  // namespace convtime::ops
