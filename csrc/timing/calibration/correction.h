#pragma once

#include "timing/calibration/calibrator.h"
#include "timing/conditions/clock_probe.h"
#include "timing/options.h"

namespace convtime {

// Both functions wait for the device through the options' hooks, and do not throw if no calibration
// is possible. `held` says whether the samples' queue is held.

/// Return a method's overhead per sample at the device's present clock, from the last calibration
/// at that clock or from a new one.
Calibration expected_overhead(Method method, const TimingOptions& options, bool held,
                              ClockProbe& probe);

/// Return a method's overhead per sample from a new calibration.
Calibration calibrate(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
