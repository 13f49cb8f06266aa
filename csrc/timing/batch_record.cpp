#include "timing/batch_record.h"

#include <cmath>

#include "timing/batch.h"

namespace convtime {
namespace {

std::string fate_of(const Batch& batch, BatchFate fate) {
  if (batch.hold_given_up) {
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
  }
  return "unknown";
}

}  // namespace

BatchRecord record_of(const Batch& batch, BatchFate fate) {
  BatchRecord record;
  record.rounds = batch.candidates.front().seconds.size();
  record.fate = fate_of(batch, fate);
  record.issue_seconds = batch.issue_seconds;
  record.busy_seconds = batch.busy_seconds;
  for (const CandidateSamples& samples : batch.candidates) {
    for (const double clock_hz : samples.sm_clocks_hz) {
      // fmin and fmax pass over NaN, which unknown clocks are, and which both begin with.
      record.lowest_clock_hz = std::fmin(record.lowest_clock_hz, clock_hz);
      record.highest_clock_hz = std::fmax(record.highest_clock_hz, clock_hz);
    }
  }
  return record;
}

}  // namespace convtime
