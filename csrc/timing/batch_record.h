#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "timing/conditions/regime.h"

namespace convtime {

struct Batch;

/// The record of a batch, for callers that follow a run. NaN if a clock is unknown.
struct BatchRecord {
  bool warming_up = false;  ///< before the samples that are certainly kept
  std::size_t rounds = 0;   ///< of one call per candidate
  /// Whether the queue was held until all calls were issued; none if it was not supposed to be
  /// held.
  std::optional<bool> held{};
  std::string fate{};      ///< what happened to its samples, and to earlier samples
  double gap_seconds = 0;  ///< device idle time before the batch
  double idle_clock_hz = std::numeric_limits<double>::quiet_NaN();  ///< at the end of the gap
  /// The range of its samples' clocks.
  double lowest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double highest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double issue_seconds = 0;  ///< host time to issue all calls
  double wall_seconds = 0;   ///< from the first call's issue until all were done
};

/// Describe a regime's decision on a batch.
const char* describe(BatchFate fate, bool hold_given_up);

/// Fill in the fields that the batch itself determines.
void fill_in(BatchRecord& record, const Batch& batch);

}  // namespace convtime
