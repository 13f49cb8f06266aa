#pragma once

#include <span>

#include "timing/options.h"
#include "timing/samples.h"

namespace convtime {

/// Takes what the method itself costs off the samples, by a calibration, and returns it; 0, and the
/// samples are left alone, for methods that cost nothing, and where the cost is not known.
double subtract_overhead(Method method, const TimingOptions& options,
                         std::span<CandidateSamples> candidates);

}  // namespace convtime
