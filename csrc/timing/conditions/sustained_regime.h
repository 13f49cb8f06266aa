#pragma once

#include <span>
#include <vector>

#include "core/export.h"
#include "timing/conditions/regime.h"
#include "timing/device_traits.h"

namespace convtime {

struct SustainedLimits {
  double min_seconds = kDeviceTraits.min_sustained_seconds;
  double max_seconds = kDeviceTraits.max_sustained_seconds;
  double load_seconds = kDeviceTraits.load_seconds;  ///< between two pauses
};

/// Regime::kSustained: the candidates run back to back until neither times nor clocks drift. Only
/// some of the calls are timed, so that few pauses follow them.
class CONVTIME_API SustainedRegime final : public RegimeControl {
 public:
  explicit SustainedRegime(SustainedLimits limits = {}) : limits_(limits) {}

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override { return limits_.load_seconds; }
  double load_seconds() const override { return limits_.load_seconds; }
  Outcome<Regime> outcome(std::span<const std::vector<double>> clocks_hz,
                          bool steady) const override;

 private:
  SustainedLimits limits_;
};

}  // namespace convtime
