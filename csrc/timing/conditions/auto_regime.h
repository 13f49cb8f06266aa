#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/burst_regime.h"
#include "timing/conditions/regime.h"

namespace convtime {

/// Regime::kAuto: leaves the device as it is, and from a batch on that shows that its clock falls
/// under the candidates, is a BurstRegime.
///
/// A clock that is at the device's maximum has not fallen, and nothing is waited for. One that is
/// below it may have fallen before, under earlier work, or may be locked: a short rest tells,
/// after which the clock without load is read.
///
/// Nobody asked for bursts, so that they may not take as long as those that somebody did. They need
/// not, either: the device was not under the load for long.
class CONVTIME_API AutoRegime final : public RegimeControl {
 public:
  static constexpr BurstLimits kUnaskedBursts = {.first_gap_seconds = 0.15,
                                                 .max_idle_seconds = 1.2};

  /// `max_clock_hz` is the highest clock that the device is made for.
  explicit AutoRegime(double max_clock_hz, BurstLimits limits = kUnaskedBursts);

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override;
  double gap_seconds() const override;
  bool settled() const override;
  bool exhausted() const override;
  BatchFate judge(const RegimeBatch& batch) override;
  RegimeOutcome outcome(std::span<const std::vector<double>> clocks_hz, bool steady) const override;
  void idled(double seconds) override;

 private:
  bool in_bursts() const { return !fall_.empty(); }
  BatchFate watch(std::span<const double> clocks_hz, double idle_clock_hz);
  bool is_rising(std::span<const double> clocks_hz) const;
  std::string fall_of(std::span<const double> clocks_hz) const;

  double max_clock_hz_;
  BurstRegime burst_;
  std::vector<double> highest_hz_;  ///< [candidate]: of its batches, and of the device without load
  std::vector<double> last_hz_;     ///< [candidate]: of the last batch
  bool rests_next_ = false;         ///< whether the device is to rest before the next batch
  bool has_rested_ = false;
  bool settled_ = true;  ///< whether the clock is known not to be low; so where it is never known
  std::string fall_;     ///< how the clock fell; empty while it did not
};

}  // namespace convtime
