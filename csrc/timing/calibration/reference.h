#pragma once

#include "core/export.h"
#include "timing/calibration/calibrator.h"
#include "timing/options.h"

namespace convtime {

/// Time the reference (TimingOptions::calibration_reference) with a method, under the options for
/// candidates except the stop rule: with their flush, stream, clock probe and, if `held`, their
/// hold. Waits for the device without the options' hooks. Throws if the method is unavailable.
CONVTIME_API TimedReference time_reference(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
