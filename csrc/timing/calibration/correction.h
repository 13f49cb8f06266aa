#pragma once

#include "timing/calibration/calibrator.h"
#include "timing/conditions/clock_probe.h"
#include "timing/options.h"

namespace convtime {

// Both wait for the device through the options' hooks, and throw nothing where no calibration can
// be had. `held` says whether the samples' queue is held.

/// What a method adds to each sample at the clock that the device has now, by the last calibration
/// at that clock, or by one that is made for it.
Calibration expected_overhead(Method method, const TimingOptions& options, bool held,
                              ClockProbe& probe);

/// What a method adds to each sample, by a calibration that is made now.
Calibration calibrate(Method method, const TimingOptions& options, bool held);

}  // namespace convtime
