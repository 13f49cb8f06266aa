#pragma once

#include <cstddef>
#include <limits>

namespace convtime {

/// The warm-up before sampling: at least `calls` calls of each candidate, for at least `seconds`.
/// If `steady`, batches are sampled until neither times nor clocks drift (steadiness.h), for at
/// least `min_steady_seconds` and at most `max_steady_seconds`. The batches without drift already
/// count as samples.
struct Warmup {
  std::size_t calls = 3;
  double seconds = 0;
  bool steady = true;
  /// The first calls of a process are slower, but look steady for some milliseconds.
  double min_steady_seconds = 0.01;
  double max_steady_seconds = 1;
  /// A longer series drops its first half, so that slowing drift, as of temperature, becomes steady
  /// eventually.
  double max_series_seconds = std::numeric_limits<double>::infinity();
};

}  // namespace convtime
