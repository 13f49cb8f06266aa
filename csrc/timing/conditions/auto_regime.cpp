#include "timing/conditions/auto_regime.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "timing/conditions/regime_clocks.h"

namespace convtime {

AutoRegime::AutoRegime(double max_clock_hz, BurstLimits limits)
    : max_clock_hz_(max_clock_hz), burst_(max_clock_hz, limits) {}

Warmup AutoRegime::warmup(const Warmup& asked) const {
  return in_bursts() ? burst_.warmup(asked) : asked;
}

double AutoRegime::batch_seconds() const {
  return in_bursts() ? burst_.batch_seconds() : RegimeControl::batch_seconds();
}

double AutoRegime::gap_seconds() const {
  if (in_bursts()) {
    return burst_.gap_seconds();
  }
  return rests_next_ ? kDeviceTraits.rest_seconds : 0;
}

bool AutoRegime::settled() const { return in_bursts() ? burst_.settled() : settled_; }

bool AutoRegime::exhausted() const { return in_bursts() && burst_.exhausted(); }

void AutoRegime::idled(double seconds) {
  RegimeControl::idled(seconds);
  burst_.idled(seconds);
}

BatchFate AutoRegime::judge(const RegimeBatch& batch) {
  if (in_bursts()) {
    return burst_.judge(batch);
  }
  rests_next_ = false;
  const std::vector<std::vector<double>> known_hz = known_clocks(batch.clocks_hz);
  return all_have_clocks(known_hz) ? watch(median_clocks(known_hz), batch.idle_clock_hz)
                                   : BatchFate::kKeep;
}

/// Process each candidate's clock in a batch, and the clock before the batch, which is known after
/// a rest.
BatchFate AutoRegime::watch(std::span<const double> clocks_hz, double idle_clock_hz) {
  has_rested_ = has_rested_ || std::isfinite(idle_clock_hz);
  highest_hz_.resize(clocks_hz.size(), 0);
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    highest_hz_[i] = std::fmax(std::max(highest_hz_[i], clocks_hz[i]), idle_clock_hz);
  }
  fall_ = fall_of(clocks_hz);
  if (in_bursts()) {
    return BatchFate::kBeginAnew;
  }
  settled_ =
      has_rested_ || std::ranges::min(clocks_hz) >= kDeviceTraits.high_clock_share * max_clock_hz_;
  rests_next_ = !settled_ && !is_rising(clocks_hz);
  last_hz_.assign(clocks_hz.begin(), clocks_hz.end());
  return BatchFate::kKeep;
}

/// Return whether a clock may still be rising, as on a device that has just woken up.
bool AutoRegime::is_rising(std::span<const double> clocks_hz) const {
  if (last_hz_.empty()) {
    return true;
  }
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    if (kDeviceTraits.high_clock_share * clocks_hz[i] > last_hz_[i]) {
      return true;
    }
  }
  return false;
}

/// Describe the first clock that fell; empty if none fell.
std::string AutoRegime::fall_of(std::span<const double> clocks_hz) const {
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    if (clocks_hz[i] < kDeviceTraits.high_clock_share * highest_hz_[i]) {
      return "the clock fell from " + in_megahertz(highest_hz_[i]) + " to " +
             in_megahertz(clocks_hz[i]) + " under the calls";
    }
  }
  return "";
}

Outcome<Regime> AutoRegime::outcome(std::span<const std::vector<double>> clocks_hz,
                                    bool steady) const {
  if (in_bursts()) {
    const Outcome<Regime> burst = burst_.outcome(clocks_hz, steady);
    return {burst.value, burst.value == Regime::kBurst
                             ? fall_
                             : fall_ + ", and no burst was reached: " + burst.reason};
  }
  if (last_hz_.empty()) {
    return {Regime::kAsIs, kUnknownClock};
  }
  return {Regime::kAsIs, settled_ ? "the clock did not fall under the calls"
                                  : "there were too few calls to tell whether the clock falls"};
}

}  // namespace convtime
