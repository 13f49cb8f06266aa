#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "core/enum_names.h"
#include "core/export.h"
#include "core/outcome.h"

namespace convtime {

/// The warm-up before sampling: at least `calls` calls of each candidate, for at least `seconds`.
/// If `steady`, batches are sampled until neither times nor clocks drift (steadiness.h), for at
/// least `min_steady_seconds` and at most `max_steady_seconds`. The batches without drift already
/// count as samples.
struct Warmup {
  std::size_t calls = 3;
  double seconds = 0;
  bool steady = true;
  /// The first calls of a process are slower, but look steady for some milliseconds.
  double min_steady_seconds = 0.01;
  double max_steady_seconds = 1;
  /// A longer series drops its first half, so that slowing drift, as of temperature, becomes steady
  /// eventually.
  double max_series_seconds = std::numeric_limits<double>::infinity();
};

/// The state of the device in which to sample.
enum class Regime {
  kAuto,       ///< kBurst if the device's clock falls under the candidates, otherwise kAsIs
  kAsIs,       ///< the present state
  kBurst,      ///< rested: at the highest clock for the candidates, as after idling
  kSustained,  ///< in the equilibrium under sustained load by the candidates
};
constexpr auto names_of(Regime /*all*/) {
  return std::array{"auto", "as-is", "burst", "sustained"};
}

/// The device's state during a batch.
struct RegimeBatch {
  /// The clock just before the batch, with almost no load; NaN if it was not read.
  double idle_clock_hz = std::numeric_limits<double>::quiet_NaN();
  /// [candidate][call], NaN if unknown.
  std::vector<std::vector<double>> clocks_hz;
  double wall_seconds = 0;  ///< from the first call's issue until all were done
};

/// What happens to a batch's samples.
enum class BatchFate {
  kKeep,
  kSetAside,         ///< the device was not in the regime
  kSetEarlierAside,  ///< the device was in the regime, but this batch shows that it was not before
  kSetAllAside,  ///< the regime was given up: samples taken for it must not be mixed with the rest
  kBeginAnew,    ///< as kSetAllAside, and the regime differs from here on: its warm-up follows
};
constexpr auto names_of(BatchFate /*all*/) {
  return std::array{"kept", "set aside", "kept, and all before it set aside",
                    "set aside with all before it",
                    "set aside with all before it, to begin anew in another regime"};
}

/// Brings the device into a regime and keeps it there: the sampler calls it between batches. This
/// class is Regime::kAsIs, and leaves the device unchanged.
class CONVTIME_API RegimeControl {
 public:
  virtual ~RegimeControl() = default;

  /// Return the warm-up that the regime needs, given the caller's request `asked`.
  virtual Warmup warmup(const Warmup& asked) const { return asked; }

  /// Return the maximum duration of a batch, which keeps the checks of the stop rule and signals
  /// frequent.
  virtual double batch_seconds() const { return 0.02; }

  /// Return how long the device must be busy before a pause after the next batch: if the batch is
  /// shorter, untimed calls come right before it.
  virtual double load_seconds() const { return 0; }

  /// Return how long the device must idle before the next batch.
  virtual double gap_seconds() const { return 0; }

  /// Return whether enough batches were seen to know that the device is in the regime.
  virtual bool settled() const { return true; }

  /// Return whether sampling must end as soon as possible, as if its budget were spent: there was
  /// too much idling, or the device no longer reaches the regime.
  virtual bool exhausted() const { return false; }

  virtual BatchFate judge(const RegimeBatch&) { return BatchFate::kKeep; }

  /// Return the regime of samples with these clocks in hertz, [candidate][round], never
  /// Regime::kAuto; `steady` says how the warm-up ended.
  virtual Outcome<Regime> outcome(std::span<const std::vector<double>> /*clocks_hz*/,
                                  bool /*steady*/) const {
    return {Regime::kAsIs};
  }

  virtual void idled(double seconds) { idle_seconds_ += seconds; }
  double idle_seconds() const { return idle_seconds_; }

 private:
  double idle_seconds_ = 0;
};

}  // namespace convtime
