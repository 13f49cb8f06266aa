#include "timing/batch_record.h"

#include <cmath>

#include "timing/batch.h"

namespace convtime {

const char* describe(BatchFate fate, bool hold_given_up) {
  if (hold_given_up) {
    return "set aside with all before it, as the queue cannot be held";
  }
  switch (fate) {
    case BatchFate::kKeep:
      return "kept";
    case BatchFate::kSetAside:
      return "set aside";
    case BatchFate::kSetEarlierAside:
      return "kept, and all before it set aside";
    case BatchFate::kSetAllAside:
      return "set aside with all before it";
    case BatchFate::kBeginAnew:
      return "set aside with all before it, to begin anew in another regime";
  }
  return "unknown";
}

void fill_in(BatchRecord& record, const Batch& batch) {
  record.rounds = batch.candidates.front().seconds.size();
  record.issue_seconds = batch.issue_seconds;
  record.wall_seconds = batch.wall_seconds;
  for (const CandidateSamples& samples : batch.candidates) {
    for (const double clock_hz : samples.sm_clocks_hz) {
      // fmin and fmax skip NaN, which marks unknown clocks and is the initial value of both.
      record.lowest_clock_hz = std::fmin(record.lowest_clock_hz, clock_hz);
      record.highest_clock_hz = std::fmax(record.highest_clock_hz, clock_hz);
    }
  }
}

}  // namespace convtime
