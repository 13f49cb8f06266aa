#pragma once

#include "core/export.h"
#include "timing/calibration/calibrator.h"
#include "timing/options.h"

namespace convtime {

/// Times the reference (TimingOptions::calibration_reference) by a method, as the options have it
/// for candidates but for when to stop: with their flush, stream, clock probe and, where `held`,
/// their hold. Waits for the device without asking the options' hooks. Throws where the method
/// cannot be had.
CONVTIME_API TimedReference time_reference(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
