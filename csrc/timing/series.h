#pragma once

#include <cstddef>
#include <vector>

#include "timing/samples.h"

namespace convtime {

/// The samples of all candidates, equally many of each: one per round.
using Series = std::vector<CandidateSamples>;

inline std::size_t rounds_of(const Series& series) { return series.front().samples.size(); }

/// Append later samples of the same candidates.
void append(Series&& more, Series& series);

/// Append the seconds of samples that do not count.
void append_discarded(const Series& more, Series& series);

/// Discard all samples: they were taken under a different condition than the next.
void set_aside(Series& series);

/// Remove the first rounds without a trace.
void forget_first(std::size_t rounds, Series& series);

/// Discard all rounds except these, which are in ascending order.
void keep_rounds(const std::vector<std::size_t>& rounds, Series& series);

}  // namespace convtime
