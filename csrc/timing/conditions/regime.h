#pragma once

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/conditions/warmup.h"

namespace convtime {

/// Which state of the device is to be sampled.
enum class Regime {
  kAuto,       ///< kBurst where the device's clock falls under the candidates, else kAsIs
  kAsIs,       ///< whichever it is in
  kBurst,      ///< rested: at the highest clock that it gives the candidates, as after idling
  kSustained,  ///< in the equilibrium that it comes to under lasting load by the candidates
};

CONVTIME_API const char* to_string(Regime regime);
/// Throws std::invalid_argument with the allowed names.
CONVTIME_API Regime regime_from_string(const std::string& name);

/// The regime that samples are of, never Regime::kAuto, and why it is not the one asked for; empty
/// where it is.
struct RegimeOutcome {
  Regime regime = Regime::kAsIs;
  std::string reason;
};

/// What a batch showed of the device's state.
struct RegimeBatch {
  /// The clock just before the batch, with next to no load; NaN where it was not read.
  double idle_clock_hz = std::numeric_limits<double>::quiet_NaN();
  /// [candidate][call], NaN where it is not known.
  std::vector<std::vector<double>> clocks_hz;
  double wall_seconds = 0;  ///< from the first call's issue until all were done
};

/// What becomes of a batch's samples.
enum class BatchFate {
  kKeep,
  kSetAside,         ///< the device was not in the regime
  kSetEarlierAside,  ///< it was, and the batch shows that it was not before
  kSetAllAside,  ///< the regime was given up: what was sampled for it does not mix with the rest
  kBeginAnew,    ///< likewise, and the regime is another one from here on: its own warm-up follows
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

  /// How long the device is to be at work before a pause after the next batch: where the batch is
  /// shorter, calls that nobody times come right before it.
  virtual double load_seconds() const { return 0; }

  /// How long the device is to idle before the next batch.
  virtual double gap_seconds() const { return 0; }

  /// Whether enough batches were seen to know that the device is in the regime.
  virtual bool settled() const { return true; }

  /// Whether sampling is to end, as soon as it may, as if its budget were spent: there was too much
  /// idling, or the device no longer comes to the regime.
  virtual bool exhausted() const { return false; }

  virtual BatchFate judge(const RegimeBatch&) { return BatchFate::kKeep; }

  /// For samples with these clocks in hertz, [candidate][round]; `steady` says how the warm-up
  /// ended.
  virtual RegimeOutcome outcome(std::span<const std::vector<double>> /*clocks_hz*/,
                                bool /*steady*/) const {
    return {};
  }

  virtual void idled(double seconds) { idle_seconds_ += seconds; }
  double idle_seconds() const { return idle_seconds_; }

 private:
  double idle_seconds_ = 0;
};

}  // namespace convtime
