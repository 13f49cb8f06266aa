#include "timing/conditions/burst_regime.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "timing/conditions/regime_clocks.h"

namespace convtime {
namespace {

/// Of its candidate's highest clock: what the gaps aim at.
constexpr double kWantedShare = 0.99;
/// Samples that may be below kDeviceTraits.high_clock_share; in a batch always one: the first one
/// after a gap is, by some 3 % on an H200, and one that the host disturbed says nothing.
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

}  // namespace

BurstRegime::BurstRegime(double max_clock_hz, BurstLimits limits)
    : max_clock_hz_(max_clock_hz),
      limits_(limits),
      gap_seconds_(limits.first_gap_seconds),
      batch_seconds_(limits.batch_seconds) {}

/// Always until steady: it takes some batches to see that the clock is at its top.
Warmup BurstRegime::warmup(const Warmup& asked) const {
  Warmup warmup = asked;
  warmup.calls = std::max(asked.calls, kMinRegimeCalls);
  warmup.steady = true;
  warmup.min_steady_seconds = 0;  // the load never lasts long enough for the clock to fall
  warmup.max_steady_seconds = kMaxBurstWarmupSeconds;
  return warmup;
}

double BurstRegime::batch_seconds() const {
  return given_up() ? RegimeControl::batch_seconds() : batch_seconds_;
}

/// Also where there was enough idling: what is sampled nevertheless, since it must be, is to be of
/// the regime.
double BurstRegime::gap_seconds() const { return given_up() ? 0 : gap_seconds_; }

bool BurstRegime::settled() const { return given_up() || agreeing_ >= kAgreeing; }

bool BurstRegime::exhausted() const {
  return !given_up() && (idle_seconds() >= limits_.max_idle_seconds || rejected_ >= kMaxRejected);
}

BatchFate BurstRegime::judge(const RegimeBatch& batch) {
  if (given_up()) {
    return BatchFate::kKeep;
  }
  idle_clock_hz_ = std::fmax(idle_clock_hz_, batch.idle_clock_hz);
  top_hz_.resize(batch.clocks_hz.size(), 0);
  kept_hz_.resize(batch.clocks_hz.size(), 0);
  const bool whole = is_whole(batch);
  const Clocks clocks_hz = known_clocks(batch.clocks_hz);
  if (!all_have_clocks(clocks_hz)) {
    adapt(clocks_hz, batch.wall_seconds, /*slipped=*/true, /*rose=*/false);
    return reject(clocks_hz);
  }

  const std::vector<double> medians_hz = median_clocks(clocks_hz);
  const std::vector<double> comparable_hz = whole ? medians_hz : std::vector<double>{};
  const bool rose = has_risen(comparable_hz);
  raise_tops(comparable_hz);
  const bool fell = has_fallen(clocks_hz);
  adapt(clocks_hz, batch.wall_seconds, fell || has_slipped(medians_hz), rose);
  return fell ? reject(clocks_hz) : accept(comparable_hz, rose);
}

/// The first calls after idling may be at a higher clock than the rest, and are all of a batch that
/// is cut short: its clocks are not to be compared with those of whole ones.
bool BurstRegime::is_whole(const RegimeBatch& batch) {
  const std::size_t rounds = batch.clocks_hz.front().size();
  return 2 * rounds >= std::exchange(last_rounds_, rounds);
}

/// Whether a clock is clearly higher than in what is kept.
bool BurstRegime::has_risen(std::span<const double> medians_hz) const {
  for (std::size_t i = 0; i < medians_hz.size(); ++i) {
    if (kDeviceTraits.high_clock_share * medians_hz[i] > kept_hz_[i]) {
      return true;
    }
  }
  return false;
}

/// Whether more of a candidate's clocks are too low for samples of a burst than are forgiven.
bool BurstRegime::has_fallen(const Clocks& clocks_hz) const {
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    const auto calls = static_cast<double>(clocks_hz[i].size());
    const double forgiven = calls > 1 ? std::max(1.0, kMaxShareBelow * calls) : 0;
    if (count_below_top(clocks_hz[i], i) > forgiven) {
      return true;
    }
  }
  return false;
}

/// Whether a clock is lower than gaps aim at.
bool BurstRegime::has_slipped(std::span<const double> medians_hz) const {
  for (std::size_t i = 0; i < medians_hz.size(); ++i) {
    if (medians_hz[i] < kWantedShare * top_hz_[i]) {
      return true;
    }
  }
  return false;
}

/// Whether the batch alone made a clock fall.
bool BurstRegime::fell_within(const Clocks& clocks_hz) const {
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    const double limit_hz = kDeviceTraits.high_clock_share * top_hz_[i];
    if (clocks_hz[i].size() > 1 && clocks_hz[i].front() >= limit_hz &&
        clocks_hz[i].back() < limit_hz) {
      return true;
    }
  }
  return false;
}

double BurstRegime::count_below_top(std::span<const double> clocks_hz,
                                    std::size_t candidate) const {
  const double limit_hz = kDeviceTraits.high_clock_share * top_hz_[candidate];
  return static_cast<double>(std::count_if(clocks_hz.begin(), clocks_hz.end(),
                                           [&](double clock_hz) { return clock_hz < limit_hz; }));
}

/// The lowest clock, of its candidate's highest.
double BurstRegime::lowest_share(const Clocks& clocks_hz) const {
  double share = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < clocks_hz.size(); ++i) {
    share = std::min(share, std::ranges::min(clocks_hz[i]) / top_hz_[i]);
  }
  return share;
}

void BurstRegime::raise_tops(std::span<const double> medians_hz) {
  for (std::size_t i = 0; i < medians_hz.size(); ++i) {
    top_hz_[i] = std::max(top_hz_[i], medians_hz[i]);
  }
}

/// Sizes the next gap and batch by what the last batch showed.
void BurstRegime::adapt(const Clocks& clocks_hz, double wall_seconds, bool slipped, bool rose) {
  if (slipped) {
    too_short_seconds_ = gap_seconds_;
    gap_seconds_ *= kGrow;
    if (fell_within(clocks_hz)) {
      batch_seconds_ = std::min(batch_seconds_, wall_seconds) / 2;
    }
  } else if (!rose) {
    // Never busy for more than half of the time, whatever the clock says: it is late to fall.
    gap_seconds_ =
        std::max({kShrink * gap_seconds_, kOverTooShort * too_short_seconds_, wall_seconds});
  }
  gap_seconds_ = std::min(gap_seconds_, limits_.max_gap_seconds);
}

BatchFate BurstRegime::accept(std::span<const double> medians_hz, bool rose) {
  rejected_ = 0;
  has_samples_ = true;
  agreeing_ = rose ? 0 : agreeing_ + 1;
  for (std::size_t i = 0; i < medians_hz.size(); ++i) {
    kept_hz_[i] = rose ? medians_hz[i] : std::min(kept_hz_[i], medians_hz[i]);
  }
  return rose ? BatchFate::kSetEarlierAside : BatchFate::kKeep;
}

BatchFate BurstRegime::reject(const Clocks& clocks_hz) {
  agreeing_ = 0;
  // Samples of the regime are worth more than going on without it: it is first asked to end.
  if (++rejected_ < (has_samples_ ? 2 * kMaxRejected : kMaxRejected)) {
    return BatchFate::kSetAside;
  }
  refusal_ = all_have_clocks(clocks_hz)
                 ? "the clock fell below 98 % of the highest that the calls were seen at in " +
                       std::to_string(rejected_) + " batches in a row, at last to " +
                       one_decimal(100 * lowest_share(clocks_hz)) +
                       " % of it, although the GPU idled for " + one_decimal(idle_seconds()) +
                       " s in all"
                 : kUnknownClock;
  return BatchFate::kSetAllAside;
}

RegimeOutcome BurstRegime::outcome(std::span<const std::vector<double>> clocks_hz,
                                   bool /*steady*/) const {
  if (given_up()) {
    return {Regime::kAsIs, refusal_};
  }
  const Clocks known_hz = known_clocks(clocks_hz);
  if (!all_have_clocks(known_hz)) {
    return {Regime::kAsIs, kUnknownClock};
  }
  if (!(idle_clock_hz_ >= kMinIdleShare * max_clock_hz_)) {
    return {Regime::kAsIs, "the clock came to " + in_megahertz(idle_clock_hz_) + " of " +
                               in_megahertz(max_clock_hz_) +
                               " even without load: it is locked, or the GPU is hot or capped"};
  }
  for (std::size_t i = 0; i < known_hz.size(); ++i) {
    const double share = count_below_top(known_hz[i], i) / static_cast<double>(known_hz[i].size());
    if (share > kMaxShareBelow) {
      return {Regime::kAsIs, one_decimal(100 * share) + " % of the samples are below 98 % of " +
                                 in_megahertz(top_hz_[i]) +
                                 ", the highest clock that the calls were seen at"};
    }
  }
  return {Regime::kBurst, ""};
}

}  // namespace convtime
