#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/burst_regime.h"
#include "timing/conditions/regime.h"

namespace convtime {

/// Regime::kAuto: leaves the device unchanged until a batch shows that its clock falls under the
/// candidates, then acts as a BurstRegime.
///
/// A clock at the device's maximum has not fallen, and nothing is waited for. A clock below it may
/// have fallen before, under earlier work, or may be locked. A short rest decides this: the clock
/// without load is read after it.
///
/// The caller did not request bursts, so they must take less time than requested bursts. They need
/// less, too: the device was not under load for long.
class CONVTIME_API AutoRegime final : public RegimeControl {
 public:
  static constexpr BurstLimits kUnaskedBursts = {.first_gap_seconds = 0.15,
                                                 .max_idle_seconds = 1.2};

  /// `max_clock_hz` is the device's maximum clock.
  explicit AutoRegime(double max_clock_hz, BurstLimits limits = kUnaskedBursts);

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override;
  double gap_seconds() const override;
  bool settled() const override;
  bool exhausted() const override;
  BatchFate judge(const RegimeBatch& batch) override;
  Outcome<Regime> outcome(std::span<const std::vector<double>> clocks_hz,
                          bool steady) const override;
  void idled(double seconds) override;

 private:
  bool in_bursts() const { return !fall_.empty(); }
  BatchFate watch(std::span<const double> clocks_hz, double idle_clock_hz);
  bool is_rising(std::span<const double> clocks_hz) const;
  std::string fall_of(std::span<const double> clocks_hz) const;

  double max_clock_hz_;
  BurstRegime burst_;
  std::vector<double> highest_hz_;  ///< [candidate]: over its batches, and the device without load
  std::vector<double> last_hz_;     ///< [candidate]: of the last batch
  bool rests_next_ = false;         ///< whether the device rests before the next batch
  bool has_rested_ = false;
  bool settled_ = true;  ///< whether the clock is known not to be low; true also if it is never
                         ///< known
  std::string fall_;     ///< how the clock fell; empty if it did not
};

}  // namespace convtime
