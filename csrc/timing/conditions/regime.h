#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/warmup.h"

namespace convtime {

/// Which state of the device is to be sampled.
enum class Regime {
  kAsIs,       ///< whichever it is in
  kBurst,      ///< rested: at the highest clock that it gives the candidates, as after idling
  kSustained,  ///< in the equilibrium that it comes to under lasting load by the candidates
};

CONVTIME_API const char* to_string(Regime regime);
/// Throws std::invalid_argument with the allowed names.
CONVTIME_API Regime regime_from_string(const std::string& name);

/// The regime that samples are of, and why it is not the one asked for; empty where it is.
struct RegimeOutcome {
  Regime regime = Regime::kAsIs;
  std::string reason;
};

/// What a batch showed of the device's state.
struct RegimeBatch {
  /// The clock just before the batch, with next to no load; NaN where it was not read.
  double idle_hertz = std::numeric_limits<double>::quiet_NaN();
  /// [candidate][call] as in SamplerResult.
  std::vector<std::vector<double>> clock_hertz;
  double busy_seconds = 0;  ///< from the first call's issue until all were done
};

/// What becomes of a batch's samples.
enum class BatchFate {
  kKeep,
  kSetAside,         ///< the device was not in the regime
  kSetEarlierAside,  ///< it was, and the batch shows that it was not before
  kSetAllAside,  ///< the regime was given up: what was sampled for it does not mix with the rest
};

/// Brings the device into a regime and keeps it there: the sampler asks it between batches. This
/// class is Regime::kAsIs, and leaves the device alone.
class CONVTIME_API RegimeControl {
 public:
  virtual ~RegimeControl() = default;

  /// The warm-up that the regime needs, where the caller asked for `asked`.
  virtual Warmup warmup(const Warmup& asked) const { return asked; }

  /// A batch is to be no longer than this, so that the stop rule and signals are looked at often
  /// enough.
  virtual double batch_seconds() const { return 0.02; }

  /// How long the device is to be at work before a pause behind the next batch: where the batch is
  /// shorter, calls that nobody times come right before it.
  virtual double load_seconds() const { return 0; }

  /// How long the device is to idle before the next batch.
  virtual double gap_seconds() const { return 0; }

  /// Whether enough batches were seen to know that the device is in the regime.
  virtual bool settled() const { return true; }

  /// Whether sampling is to end as if its budget were spent: there was too much idling.
  virtual bool exhausted() const { return false; }

  virtual BatchFate judge(const RegimeBatch&) { return BatchFate::kKeep; }

  /// For samples with these clocks, [candidate][round]; `steady` says how the warm-up ended.
  virtual RegimeOutcome outcome(std::span<const std::vector<double>>, bool) const { return {}; }

  void idled(double seconds) { idle_seconds_ += seconds; }
  double idle_seconds() const { return idle_seconds_; }

 private:
  double idle_seconds_ = 0;
};

/// For an H200, which recovers from full load in some 0.1 s, and holds a rested matmul's clock for
/// 0.06 s. What another device needs is found from there.
struct BurstLimits {
  double first_gap_seconds = 0.3;
  double max_gap_seconds = 1;
  double max_idle_seconds = 10;
  double batch_seconds = 0.005;
};

/// Regime::kBurst: the device idles between batches, longer where a candidate's clock is below the
/// highest that it was seen at, and shorter, step by step, where it is not. The highest clock is
/// each candidate's own: heavy work never runs at the device's maximum, however rested. That the
/// device itself is not held down shows in its clock without load.
class CONVTIME_API BurstRegime final : public RegimeControl {
 public:
  /// `max_hertz` is the highest clock that the device is made for.
  explicit BurstRegime(double max_hertz, BurstLimits limits = {});

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override;
  double gap_seconds() const override;
  bool settled() const override;
  bool exhausted() const override;
  BatchFate judge(const RegimeBatch& batch) override;
  RegimeOutcome outcome(std::span<const std::vector<double>> clock_hertz,
                        bool steady) const override;

 private:
  bool given_up() const { return !refusal_.empty(); }
  double count_below_top(std::span<const double> hertz, std::size_t candidate) const;
  void adapt(const RegimeBatch& batch, bool slipped, bool rose);

  double max_hertz_;
  BurstLimits limits_;
  double gap_seconds_;
  double batch_seconds_;
  double too_short_seconds_ = 0;    ///< the last gap behind which a clock was too low
  double idle_hertz_ = 0;           ///< the highest clock without load
  std::vector<double> top_hertz_;   ///< [candidate]: the highest median of a batch
  std::vector<double> kept_hertz_;  ///< [candidate]: the lowest median of a batch that is kept
  std::size_t last_rounds_ = 0;     ///< of the last batch
  std::size_t agreeing_ = 0;  ///< batches in a row, the last ones, that were at the same clock
  std::size_t rejected_ = 0;  ///< batches in a row, the last ones, that were set aside
  std::string refusal_;       ///< why the regime was given up; empty while it was not
};

/// On an H200 under full load, power is capped again after some 0.8 s. Where the host's work
/// between batches leaves it a rest of some milliseconds in twenty, its clock is 10 % higher, and
/// moves by 3 % for seconds at a time.
struct SustainedLimits {
  double min_seconds = 2.5;
  double max_seconds = 8;
  double load_seconds = 0.25;  ///< between two pauses
};

/// Regime::kSustained: the candidates run back to back until neither their times nor clocks drift.
/// Only some of the calls are timed, so that the pauses behind them are few.
class CONVTIME_API SustainedRegime final : public RegimeControl {
 public:
  explicit SustainedRegime(SustainedLimits limits = {}) : limits_(limits) {}

  Warmup warmup(const Warmup& asked) const override;
  double batch_seconds() const override { return limits_.load_seconds; }
  double load_seconds() const override { return limits_.load_seconds; }
  RegimeOutcome outcome(std::span<const std::vector<double>> clock_hertz,
                        bool steady) const override;

 private:
  SustainedLimits limits_;
};

}  // namespace convtime
