#pragma once

#include "timing/calibration/calibrator.h"
#include "timing/conditions/clock_probe.h"
#include "timing/options.h"

namespace convtime {

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
