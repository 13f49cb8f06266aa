#pragma once

#include <cstddef>
#include <limits>

namespace convtime {

/// What comes before sampling: at least `calls` calls of each candidate, for at least `seconds`.
/// If `steady`, batches follow as they are sampled, until neither times nor clocks drift any more
/// (steadiness.h), for `min_steady_seconds` at least and `max_steady_seconds` at most; those in
/// which neither did are samples already.
struct Warmup {
  std::size_t calls = 3;
  double seconds = 0;
  bool steady = true;
  /// The first calls of a process are slower in ways that look steady for some milliseconds.
  double min_steady_seconds = 0.01;
  double max_steady_seconds = 1;
  /// A series that took longer forgets its first half, so that what drifts ever more slowly, as
  /// temperature does, is steady at some time.
  double max_series_seconds = std::numeric_limits<double>::infinity();
};

}  // namespace convtime
