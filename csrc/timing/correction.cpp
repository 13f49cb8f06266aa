#include "timing/correction.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>

#include "timing/calibration.h"
#include "timing/method_choice.h"

namespace convtime {
namespace {

std::optional<double> overhead_seconds(Method method, const TimingOptions& options) {
  if (method != Method::kEvent && method != Method::kGraph) {
    return std::nullopt;
  }
  const bool may_use_cupti = kernel_problem().empty();
  const CalibrationConditions conditions{options.flush, static_cast<cudaStream_t>(options.stream),
                                         options.calibration_reference, options.hooks};
  return method == Method::kEvent
             ? event_overhead_seconds(conditions, may_use_cupti)
             : graph_overhead_seconds(options.graph_recorder, conditions, may_use_cupti);
}

}  // namespace

double subtract_overhead(Method method, const TimingOptions& options,
                         std::span<CandidateSamples> candidates) {
  const std::optional<double> overhead = overhead_seconds(method, options);
  if (!overhead.has_value()) {
    return 0;
  }
  for (CandidateSamples& samples : candidates) {
    samples.raw_seconds = samples.seconds;
    for (double& seconds : samples.seconds) {
      seconds =
          std::max(seconds - *overhead, 0.0);  // a call without a kernel takes less than one with
    }
  }
  return *overhead;
}

}  // namespace convtime
