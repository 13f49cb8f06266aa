#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "timing/conditions/regime.h"

namespace convtime {

struct Batch;

/// How a batch went, for who wants to follow a run while it lasts. NaN where a clock is not known.
struct BatchRecord {
  bool warming_up = false;  ///< before the samples that are kept for certain
  std::size_t rounds = 0;   ///< of one call of each candidate
  /// Whether the queue was held until all calls were issued; none where it was not to be.
  std::optional<bool> held{};
  std::string fate{};      ///< what became of its samples, and of earlier ones
  double gap_seconds = 0;  ///< that the device was left idle before it
  double idle_clock_hz = std::numeric_limits<double>::quiet_NaN();  ///< at the end of that
  /// Of the clocks that its samples carry.
  double lowest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double highest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double issue_seconds = 0;  ///< of the host, to issue all calls
  double wall_seconds = 0;   ///< from the first call's issue until all were done
};

/// What a regime made of a batch, in words.
const char* describe(BatchFate fate, bool hold_given_up);

/// What is known of the batch by itself.
void fill_in(BatchRecord& record, const Batch& batch);

}  // namespace convtime
