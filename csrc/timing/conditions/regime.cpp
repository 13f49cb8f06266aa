#include "timing/conditions/regime.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <utility>

#include "core/enum_names.h"
#include "timing/judge/statistics.h"

namespace convtime {
namespace {

constexpr std::array kRegimes = {Regime::kAsIs, Regime::kBurst, Regime::kSustained};

/// Of its candidate's highest clock: what a sample must have to be one of a burst.
constexpr double kBurstShare = 0.98;
/// What the gaps aim at. An H200's clock moves in steps of 0.75 %.
constexpr double kWantedShare = 0.99;
/// Samples that may be below kBurstShare; in a batch always one: the first one behind a gap is, by
/// some 3 % on an H200, and one that the host disturbed says nothing.
constexpr double kMaxShareBelow = 0.2;
/// A device whose clock without load is lower, of its maximum, is locked, hot or capped.
constexpr double kMinIdleShare = 0.95;
constexpr double kShrink = 0.7;
constexpr double kGrow = 2;
/// Of a gap that was too short: how far gaps shrink from then on.
constexpr double kOverTooShort = 1.5;
/// Batches that must agree on the clock, beside the first.
constexpr std::size_t kAgreeing = 2;
constexpr std::size_t kMaxRejected = 5;
/// Of a burst's warm-up, idling aside: some batches, since each of them costs a gap.
constexpr double kMaxBurstWarmupSeconds = 0.05;

/// Calls before the first batch, which is sized by the shortest of them: the first one may compile.
constexpr std::size_t kMinCalls = 3;

constexpr const char* kUnknownClock = "the GPU's clock is not known";

std::vector<double> known(std::span<const double> hertz) {
  std::vector<double> values;
  std::copy_if(hertz.begin(), hertz.end(), std::back_inserter(values),
               [](double one) { return std::isfinite(one); });
  return values;
}

std::string megahertz(double hertz) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f MHz", hertz * 1e-6);
  return text.data();
}

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

bool all_known(std::span<const std::vector<double>> clock_hertz) {
  return !clock_hertz.empty() && std::none_of(clock_hertz.begin(), clock_hertz.end(),
                                              [](const auto& one) { return known(one).empty(); });
}

}  // namespace

const char* to_string(Regime regime) {
  switch (regime) {
    case Regime::kAsIs:
      return "as-is";
    case Regime::kBurst:
      return "burst";
    case Regime::kSustained:
      return "sustained";
  }
  return "unknown";
}

Regime regime_from_string(const std::string& name) {
  return enum_from_string(kRegimes, "regime", name);
}

BurstRegime::BurstRegime(double max_hertz, BurstLimits limits)
    : max_hertz_(max_hertz),
      limits_(limits),
      gap_seconds_(limits.first_gap_seconds),
      batch_seconds_(limits.batch_seconds) {}

/// Always until steady: it takes some batches to see that the clock is at its top.
Warmup BurstRegime::warmup(const Warmup& asked) const {
  Warmup warmup = asked;
  warmup.calls = std::max(asked.calls, kMinCalls);
  warmup.steady = true;
  warmup.min_steady_seconds = 0;  // the load never lasts long enough for the clock to fall
  warmup.max_steady_seconds = kMaxBurstWarmupSeconds;
  return warmup;
}

double BurstRegime::batch_seconds() const {
  return given_up() ? RegimeControl::batch_seconds() : batch_seconds_;
}

double BurstRegime::gap_seconds() const { return given_up() || exhausted() ? 0 : gap_seconds_; }

bool BurstRegime::settled() const { return given_up() || agreeing_ >= kAgreeing; }

bool BurstRegime::exhausted() const { return idle_seconds() >= limits_.max_idle_seconds; }

double BurstRegime::count_below_top(std::span<const double> hertz, std::size_t candidate) const {
  return static_cast<double>(std::count_if(hertz.begin(), hertz.end(), [&](double one) {
    return one < kBurstShare * top_hertz_[candidate];
  }));
}

BatchFate BurstRegime::judge(const RegimeBatch& batch) {
  if (given_up()) {
    return BatchFate::kKeep;
  }
  idle_hertz_ = std::fmax(idle_hertz_, batch.idle_hertz);
  const std::size_t candidates = batch.clock_hertz.size();
  top_hertz_.resize(candidates, 0);
  kept_hertz_.resize(candidates, 0);
  // The first calls after idling may be at a higher clock than the rest, and are all of a batch
  // that is cut short: its clocks are not to be compared with those of whole ones.
  const std::size_t rounds = batch.clock_hertz.front().size();
  const bool whole = 2 * rounds >= std::exchange(last_rounds_, rounds);
  const bool clocks_known = all_known(batch.clock_hertz);
  bool fell = !clocks_known;
  bool slipped = !clocks_known;
  bool rose = false;
  std::vector<double> middles(candidates, std::numeric_limits<double>::infinity());
  double lowest_share = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; clocks_known && i < candidates; ++i) {
    const std::vector<double> hertz = known(batch.clock_hertz[i]);
    const double middle = quantile(hertz, 0.5);
    if (whole) {
      middles[i] = middle;
      rose |= kBurstShare * middle > kept_hertz_[i];
      top_hertz_[i] = std::max(top_hertz_[i], middle);
    }
    const double forgiven = std::max(1.0, kMaxShareBelow * static_cast<double>(hertz.size()));
    fell |= count_below_top(hertz, i) > (hertz.size() > 1 ? forgiven : 0);
    slipped |= middle < kWantedShare * top_hertz_[i];
    lowest_share =
        std::min(lowest_share, *std::min_element(hertz.begin(), hertz.end()) / top_hertz_[i]);
  }
  adapt(batch, fell || slipped, rose);
  if (!fell) {
    rejected_ = 0;
    agreeing_ = rose ? 0 : agreeing_ + 1;
    for (std::size_t i = 0; i < candidates; ++i) {
      kept_hertz_[i] = rose ? middles[i] : std::min(kept_hertz_[i], middles[i]);
    }
    return rose ? BatchFate::kSetEarlierAside : BatchFate::kKeep;
  }
  agreeing_ = 0;
  if (++rejected_ < kMaxRejected) {
    return BatchFate::kSetAside;
  }
  refusal_ = clocks_known
                 ? "the clock fell below 98 % of the highest that the calls were seen at in " +
                       std::to_string(kMaxRejected) + " batches in a row, at last to " +
                       one_decimal(100 * lowest_share) + " % of it, although the GPU idled for " +
                       one_decimal(idle_seconds()) + " s in all"
                 : kUnknownClock;
  return BatchFate::kSetAllAside;
}

/// Sizes the next gap and batch by what the last batch showed.
void BurstRegime::adapt(const RegimeBatch& batch, bool slipped, bool rose) {
  if (slipped) {
    too_short_seconds_ = gap_seconds_;
    gap_seconds_ *= kGrow;
    for (std::size_t i = 0; i < batch.clock_hertz.size(); ++i) {
      const std::vector<double> hertz = known(batch.clock_hertz[i]);
      if (hertz.size() > 1 && hertz.front() >= kBurstShare * top_hertz_[i] &&
          hertz.back() < kBurstShare * top_hertz_[i]) {  // this batch alone made it fall
        batch_seconds_ = std::min(batch_seconds_, batch.busy_seconds) / 2;
        break;
      }
    }
  } else if (!rose) {
    // Never busy for more than half of the time, whatever the clock says: it is late to fall.
    gap_seconds_ =
        std::max({kShrink * gap_seconds_, kOverTooShort * too_short_seconds_, batch.busy_seconds});
  }
  gap_seconds_ = std::min(gap_seconds_, limits_.max_gap_seconds);
}

RegimeOutcome BurstRegime::outcome(std::span<const std::vector<double>> clock_hertz, bool) const {
  if (given_up()) {
    return {Regime::kAsIs, refusal_};
  }
  if (!all_known(clock_hertz)) {
    return {Regime::kAsIs, kUnknownClock};
  }
  if (!(idle_hertz_ >= kMinIdleShare * max_hertz_)) {
    return {Regime::kAsIs, "the clock came to " + megahertz(idle_hertz_) + " of " +
                               megahertz(max_hertz_) +
                               " even without load: it is locked, or the GPU is hot or capped"};
  }
  for (std::size_t i = 0; i < clock_hertz.size(); ++i) {
    const std::vector<double> hertz = known(clock_hertz[i]);
    const double share = count_below_top(hertz, i) / static_cast<double>(hertz.size());
    if (share > kMaxShareBelow) {
      return {Regime::kAsIs, one_decimal(100 * share) + " % of the samples are below 98 % of " +
                                 megahertz(top_hertz_[i]) +
                                 ", the highest clock that the calls were seen at"};
    }
  }
  return {Regime::kBurst, ""};
}

Warmup SustainedRegime::warmup(const Warmup& asked) const {
  Warmup warmup = asked;
  warmup.calls = std::max(asked.calls, kMinCalls);
  warmup.steady = true;
  warmup.min_steady_seconds = limits_.min_seconds;
  warmup.max_steady_seconds = limits_.max_seconds;
  warmup.max_series_seconds = 2 * limits_.min_seconds;
  return warmup;
}

RegimeOutcome SustainedRegime::outcome(std::span<const std::vector<double>> clock_hertz,
                                       bool steady) const {
  if (!all_known(clock_hertz)) {
    return {Regime::kAsIs, kUnknownClock};
  }
  if (steady) {
    return {Regime::kSustained, ""};
  }
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const std::vector<double>& one : clock_hertz) {
    const std::vector<double> hertz = known(one);
    low = std::min(low, *std::min_element(hertz.begin(), hertz.end()));
    high = std::max(high, *std::max_element(hertz.begin(), hertz.end()));
  }
  return {Regime::kAsIs,
          "times or clocks still drifted after " + one_decimal(limits_.max_seconds) +
              " s of load, or the calls were too few to tell; the samples' clocks lie between " +
              megahertz(low) + " and " + megahertz(high)};
}

}  // namespace convtime
