#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/export.h"
#include "timing/judge/statistics.h"

namespace convtime {

// Intervals of medians, as results have them and stop rules look at them. Samples of one run are
// not independent: some share the addresses that they worked at, neighbours share clock and
// temperature. So an interval is that of as many independent values as the samples are worth.

/// One candidate's samples, in the order taken.
struct CandidateTimes {
  std::span<const double> seconds;
  std::span<const std::size_t> places = {};  ///< of each sample; empty where there is one
};

/// What is judged: the i-th samples of all candidates are of the same round.
struct JudgedRounds {
  std::span<const CandidateTimes> candidates;
  std::span<const std::size_t> batches = {};  ///< of each round; empty where they are not known
};

/// What keeps times from being known better, however many samples there are.
struct Resolution {
  double tick_seconds = 0;         ///< of the clock that they were read from; 0 where it is fine
  double uncertainty_seconds = 0;  ///< how far all of them may be off together, either way
};

/// What an interval takes for independent draws.
enum class IntervalOver {
  kSamples,     ///< where neither of the others is known
  kBatches,     ///< batches of calls, and stretches of them, where those vary more than samples do
  kPlacements,  ///< the places that samples worked at, where there are kMinIntervalValues
};

CONVTIME_API const char* to_string(IntervalOver over);

/// A median, or a median of ratios, at kConfidence.
struct Estimate {
  double value;
  Interval sampled;   ///< as far as more samples make it narrower
  Interval interval;  ///< wider by the uncertainty that all samples share, but not below 0
  IntervalOver over;
  std::size_t count;  ///< of what it is over
};

/// Half the width of what more samples make narrower, over the value. 0 where that is a point, as
/// for calls that a device has no work of, all of which take 0; else infinite where the value is
/// not positive, or the interval is unbounded.
CONVTIME_API double relative_noise(const Estimate& estimate);

/// The samples' median. Where the clock's tick hides their spread, it is found as the mean of
/// rounded times, which is right as calls begin at random phases of the tick. Over places, the
/// interval is that of the median of their medians, by order statistics. Where consecutive samples
/// agree with each other more than with others, it is no narrower than that says; so it is for
/// places, too. Throws std::invalid_argument for no samples, and where there are places or batches
/// of some of them only.
CONVTIME_API Estimate estimate_median(const CandidateTimes& samples,
                                      std::span<const std::size_t> batches = {},
                                      const Resolution& resolution = {});

/// The median of over[i] / under[i]; its interval is found as that of a median. A clock that ticks
/// in steps can say 0, and a correction leave less than 0: where `under` is not positive, the ratio
/// is 1 if both are equal, infinity if `over` is more, and 0 if it is less. The interval holds the
/// ratios of times that are longer or shorter by the resolution's uncertainty, too. Throws
/// std::invalid_argument as estimate_median(), and where there are not as many samples of one as of
/// the other.
CONVTIME_API Estimate estimate_ratio(const CandidateTimes& over, const CandidateTimes& under,
                                     std::span<const std::size_t> batches = {},
                                     const Resolution& resolution = {});

/// The share of the samples' variance that lies between their places: the estimate of the one-way
/// analysis of variance with random effects, no less than 0. None where fewer than four places have
/// two samples or more. Throws std::invalid_argument where there are places of some samples only.
CONVTIME_API std::optional<double> placement_variance_share(const CandidateTimes& samples);

}  // namespace convtime
