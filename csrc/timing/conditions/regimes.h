#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/regime.h"
#include "timing/device_traits.h"

namespace convtime {

/// The range in which the gaps that a device needs are searched.
struct BurstLimits {
  double first_gap_seconds = kDeviceTraits.first_gap_seconds;
  double max_gap_seconds = kDeviceTraits.max_gap_seconds;
  double max_idle_seconds = 10;
  double batch_seconds = kDeviceTraits.burst_seconds;
};

/// Regime::kBurst: the device idles between batches. The gaps grow if a candidate's clock is below
/// its highest observed clock, and otherwise shrink step by step. Each candidate has a separate
/// highest clock: heavy work never runs at the device's maximum, even after a rest. The clock
/// without load shows whether the device itself is limited.
class CONVTIME_API BurstRegime final : public RegimeControl {
 public:
  /// `max_clock_hz` is the device's maximum clock.
  explicit BurstRegime(double max_clock_hz, BurstLimits limits = {});

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override;
  double gap_seconds() const override;
  bool settled() const override;
  bool exhausted() const override;
  BatchFate judge(const RegimeBatch& batch) override;
  Outcome<Regime> outcome(std::span<const std::vector<double>> clocks_hz,
                          bool steady) const override;

 private:
  /// [candidate][call], only known clocks.
  using Clocks = std::vector<std::vector<double>>;

  bool given_up() const { return !refusal_.empty(); }

  bool is_whole(const RegimeBatch& batch);
  bool has_risen(std::span<const double> medians_hz) const;
  bool has_fallen(const Clocks& clocks_hz) const;
  bool has_slipped(std::span<const double> medians_hz) const;
  bool fell_within(const Clocks& clocks_hz) const;
  double count_below_top(std::span<const double> clocks_hz, std::size_t candidate) const;
  double lowest_share(const Clocks& clocks_hz) const;

  void raise_tops(std::span<const double> medians_hz);
  void adapt(const Clocks& clocks_hz, double wall_seconds, bool slipped, bool rose);
  BatchFate accept(std::span<const double> medians_hz, bool rose);
  BatchFate reject(const Clocks& clocks_hz);

  double max_clock_hz_;
  BurstLimits limits_;
  double gap_seconds_;
  double batch_seconds_;
  double too_short_seconds_ = 0;  ///< the last gap after which a clock was too low
  double idle_clock_hz_ = 0;      ///< the highest clock without load
  std::vector<double> top_hz_;    ///< [candidate]: the highest median of a batch
  std::vector<double> kept_hz_;   ///< [candidate]: the lowest median of a kept batch
  std::size_t last_rounds_ = 0;   ///< of the last batch
  std::size_t agreeing_ = 0;      ///< latest consecutive batches at the same clock
  std::size_t rejected_ = 0;      ///< latest consecutive batches that were set aside
  bool has_samples_ = false;      ///< whether a batch was in the regime
  std::string refusal_;           ///< why the regime was given up; empty if it was not
};

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
