#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/enum_names.h"
#include "core/export.h"
#include "timing/judge/statistics.h"

namespace convtime {

// Intervals of medians for results and stop rules. The samples of one run are not independent: some
// share memory addresses, and neighbors share clock and temperature. So an interval is computed for
// the number of independent values that the samples are worth.

/// One candidate's samples, in order.
struct CandidateTimes {
  std::span<const double> seconds;
  std::span<const std::size_t> places = {};  ///< of each sample; empty if there is only one
};

/// The samples to judge: the i-th samples of all candidates belong to the same round.
struct JudgedRounds {
  std::span<const CandidateTimes> candidates;
  std::span<const std::size_t> batches = {};  ///< of each round; empty if unknown
};

/// Limits on the accuracy of times that more samples do not reduce.
struct Resolution {
  double tick_seconds = 0;         ///< tick of the clock that timed them; 0 if negligible
  double uncertainty_seconds = 0;  ///< common error of all times, in either direction
};

/// The sample unit, which an interval treats as independent draws.
enum class IntervalOver {
  kSamples,     ///< if neither of the others is known
  kBatches,     ///< batches of calls and groups of batches, if they vary more than samples do
  kPlacements,  ///< the placements of samples, if there are at least kMinIntervalValues
};
constexpr auto names_of(IntervalOver /*all*/) {
  return std::array{"samples", "batches", "placements"};
}

/// A median, or a median of ratios, at kConfidence.
struct Estimate {
  double value;
  Interval sampled;   ///< the part that more samples make narrower
  Interval interval;  ///< wider by the uncertainty that all samples share, but not below 0
  IntervalOver over;
  std::size_t count;  ///< of sample units
};

/// Return half the width of the sampled interval, relative to the value. 0 if that interval is a
/// point, as for calls without device work, which all take 0. Otherwise infinite if the value is
/// not positive or the interval is unbounded.
CONVTIME_API double relative_noise(const Estimate& estimate);

/// Estimate the samples' median. If the clock's tick hides their spread, it is the mean of the
/// rounded times, which is correct because calls start at random phases of the tick. Over
/// placements, the interval is that of the median of the placements' medians, by order statistics.
/// If consecutive samples agree with each other more than with others, the interval is at least as
/// wide as that implies; the same holds for placements. Throws std::invalid_argument for no
/// samples, and if placements or batches are given for only some samples.
CONVTIME_API Estimate estimate_median(const CandidateTimes& samples,
                                      std::span<const std::size_t> batches = {},
                                      const Resolution& resolution = {});

/// Estimate the median of over[i] / under[i] and its interval, like a median. A clock that ticks
/// can report 0, and a correction can leave less than 0. If `under` is not positive, the ratio is 1
/// if both are equal, infinity if `over` is larger, and 0 if it is smaller. The interval includes
/// the ratios of times that are longer or shorter by the resolution's uncertainty. Throws
/// std::invalid_argument like estimate_median(), and if the candidates have different numbers of
/// samples.
CONVTIME_API Estimate estimate_ratio(const CandidateTimes& over, const CandidateTimes& under,
                                     std::span<const std::size_t> batches = {},
                                     const Resolution& resolution = {});

/// Return the share of the samples' variance between their placements: the estimate of the one-way
/// analysis of variance with random effects, at least 0. None if fewer than four placements have
/// two or more samples. Throws std::invalid_argument if placements are given for only some samples.
CONVTIME_API std::optional<double> placement_variance_share(const CandidateTimes& samples);

}  // namespace convtime
