#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/judge/overhead.h"
#include "timing/judge/statistics.h"
#include "timing/options.h"
#include "timing/samples.h"

namespace convtime {

/// Samples of several candidates, with what was really used for them, and why.
struct Timing {
  SamplerResult samples;
  Method method = Method::kAuto;
  std::string method_reason;
  Queue queue = Queue::kNone;
  std::string queue_reason;
  Regime regime = Regime::kAsIs;
  std::string regime_reason;
  /// For kEvent and kGraph: what was subtracted from each of raw_seconds to give the samples; 0
  /// where the method's own cost is not known.
  Overhead overhead;
  std::string overhead_reason;  ///< why it is not known; empty where it is, and for other methods
  /// The highest rate of the device's clock; none without a GPU.
  std::optional<double> max_sm_clock_hz;
};

/// Why kKernel cannot be used in this build or process; empty where it can.
CONVTIME_API std::string kernel_method_unavailable();

/// Times the candidates against each other, interleaved (see Sampler).
/// Throws std::invalid_argument for options that contradict each other, std::runtime_error for
/// failures of CUDA, and whatever a candidate throws.
CONVTIME_API Timing time_candidates(std::span<Callable* const> candidates,
                                    const TimingOptions& options);

/// Whether this build and this machine can run work on a GPU.
CONVTIME_API bool cuda_available();

/// One operation's samples in seconds, for programs without Python.
struct CONVTIME_API Samples {
  std::vector<double> seconds;
  Method method = Method::kAuto;
  Queue queue = Queue::kNone;
  Regime regime = Regime::kAsIs;
  std::string regime_reason;      ///< why it is not the one asked for; empty where it is
  Overhead overhead;              ///< what was taken off each sample
  Interval median_interval{};     ///< of the true median, at kConfidence; unbounded for few samples
  double clock_tick_seconds = 0;  ///< of the clock that they were read from, where it matters
  std::size_t repeats = 1;        ///< calls that a sample is the average of
  std::string disturbance;        ///< why they are longer than undisturbed ones; mostly empty

  double median() const;
};

/// "12.3 us (median of 84, 95 % interval 12.2 .. 12.4 us, event, queue sleep, burst)"
CONVTIME_API std::ostream& operator<<(std::ostream& out, const Samples& samples);

/// Times one operation, on the GPU's default stream where there is a GPU, else on the CPU.
CONVTIME_API Samples time_op(std::function<void()> operation);
CONVTIME_API Samples time_op(std::function<void()> operation, const TimingOptions& options);

}  // namespace convtime
