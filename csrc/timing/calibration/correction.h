#pragma once

#include "core/export.h"
#include "timing/calibration/calibrator.h"
#include "timing/conditions/clock_probe.h"
#include "timing/options.h"

namespace convtime {

/// Time the reference (TimingOptions::calibration_reference) with a method, under the options for
/// candidates except the stop rule: with their flush, stream, clock probe and, if `held`, their
/// hold. Waits for the device without the options' hooks. Throws if the method is unavailable.
CONVTIME_API TimedReference time_reference(Method method, const TimingOptions& options, bool held);

// Both functions wait for the device through the options' hooks. If no calibration is possible,
// they do not throw, and return no overhead and the reason. `held` says whether the samples' queue
// is held.

/// Return a method's overhead per sample at the device's present clock, from the last calibration
/// at that clock or from a new one.
Outcome<Overhead> expected_overhead(Method method, const TimingOptions& options, bool held,
                                    ClockProbe& probe);

/// Return a method's overhead per sample from a new calibration.
Outcome<Overhead> calibrate(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
