#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/outcome.h"
#include "timing/callable.h"
#include "timing/judge/statistics.h"
#include "timing/options.h"
#include "timing/samples.h"

namespace convtime {

/// Samples of several candidates, with the methods and conditions that were used, and why.
struct Timing {
  SamplerResult samples;
  Outcome<Method> method;
  Outcome<Queue> queue{Queue::kNone};
  Outcome<Regime> regime{Regime::kAsIs};
  /// For kEvent and kGraph: the overhead subtracted from raw_seconds to get the samples; 0, with
  /// the reason, if it is unknown.
  Outcome<Overhead> overhead;
  /// The maximum rate of the device's clock; none without a GPU.
  std::optional<double> max_sm_clock_hz;
};

/// Return why kKernel cannot be used in this build or process; empty if it can.
CONVTIME_API std::string kernel_method_unavailable();

/// Time the candidates against each other, interleaved (see sample_rounds()). Throws
/// std::invalid_argument for contradictory options, std::runtime_error for failures of CUDA, and
/// any exception of a candidate.
CONVTIME_API Timing time_candidates(std::span<Callable* const> candidates,
                                    const TimingOptions& options);

/// Return whether this build and this machine can run work on a GPU.
CONVTIME_API bool cuda_available();

/// One operation's samples in seconds, for programs without Python.
struct CONVTIME_API Samples {
  std::vector<double> seconds;
  Method method = Method::kAuto;
  Queue queue = Queue::kNone;
  Regime regime = Regime::kAsIs;
  std::string regime_reason;      ///< why it differs from the requested one; empty if it does not
  Overhead overhead;              ///< subtracted from each sample
  Interval median_interval{};     ///< of the true median, at kConfidence; unbounded for few samples
  double clock_tick_seconds = 0;  ///< tick of the clock that timed them, if it matters
  std::size_t repeats = 1;        ///< calls over which a sample is averaged
  std::string disturbance;        ///< why they are longer than undisturbed ones; usually empty

  double median() const;
};

/// "12.3 us (median of 84, 95 % interval 12.2 .. 12.4 us, event, queue sleep, burst)"
CONVTIME_API std::ostream& operator<<(std::ostream& out, const Samples& samples);

/// Time one operation, on the GPU's default stream if there is a GPU, otherwise on the CPU.
CONVTIME_API Samples time_op(std::function<void()> operation);
CONVTIME_API Samples time_op(std::function<void()> operation, const TimingOptions& options);

}  // namespace convtime
