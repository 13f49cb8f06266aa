#pragma once

#include <span>
#include <vector>

#include "core/export.h"
#include "timing/conditions/regime.h"

namespace convtime {

/// On an H200 under full load, power is capped again after some 0.8 s. Where the host's work
/// between batches leaves it a rest of some milliseconds in twenty, its clock is 10 % higher, and
/// moves by 3 % for seconds at a time.
struct SustainedLimits {
  double min_seconds = 2.5;
  double max_seconds = 8;
  double load_seconds = 0.25;  ///< between two pauses
};

/// Regime::kSustained: the candidates run back to back until neither their times nor clocks drift.
/// Only some of the calls are timed, so that the pauses after them are few.
class CONVTIME_API SustainedRegime final : public RegimeControl {
 public:
  explicit SustainedRegime(SustainedLimits limits = {}) : limits_(limits) {}

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override { return limits_.load_seconds; }
  double load_seconds() const override { return limits_.load_seconds; }
  RegimeOutcome outcome(std::span<const std::vector<double>> clocks_hz, bool steady) const override;

 private:
  SustainedLimits limits_;
};

}  // namespace convtime
