#include "timing/conditions/regimes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <ranges>
#include <utility>

#include "timing/judge/statistics.h"

namespace convtime {
namespace {

/// Calls before the first batch, which is sized by their shortest time: the first one may compile.
constexpr std::size_t kMinRegimeCalls = 3;

constexpr const char* kUnknownClock = "the GPU's clock is not known";

/// Return the known clocks of each candidate.
std::vector<std::vector<double>> known_clocks(std::span<const std::vector<double>> clocks_hz) {
  std::vector<std::vector<double>> known_hz;
  for (const std::vector<double>& candidate_hz : clocks_hz) {
    std::ranges::copy_if(candidate_hz, std::back_inserter(known_hz.emplace_back()),
                         [](double clock_hz) { return std::isfinite(clock_hz); });
  }
  return known_hz;
}

/// Return whether each candidate has a known clock, and at least one candidate exists.
bool all_have_clocks(std::span<const std::vector<double>> known_hz) {
  return !known_hz.empty() &&
         std::ranges::none_of(known_hz, [](const std::vector<double>& candidate_hz) {
           return candidate_hz.empty();
         });
}

std::vector<double> median_clocks(std::span<const std::vector<double>> known_hz) {
  std::vector<double> medians_hz;
  for (const std::vector<double>& candidate_hz : known_hz) {
    medians_hz.push_back(quantile(candidate_hz, 0.5));
  }
  return medians_hz;
}

std::string in_megahertz(double clock_hz) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f MHz", clock_hz * 1e-6);
  return text.data();
}

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

/// Return whether the predicate is true for the index of any candidate.
template <typename Candidates, typename Predicate>
bool any_candidate(const Candidates& candidates, Predicate predicate) {
  return std::ranges::any_of(std::views::iota(std::size_t{0}, candidates.size()), predicate);
}

/// The target of the gaps, relative to the candidate's highest clock.
constexpr double kWantedShare = 0.99;
/// The share of samples that may be below kDeviceTraits.high_clock_share. One sample per batch
/// always may: the first one after a gap is, by some 3 % on an H200, and one that the host
/// disturbed is not meaningful.
constexpr double kMaxShareBelow = 0.2;
/// A device whose clock without load is a lower share of its maximum is locked, hot or capped.
constexpr double kMinIdleShare = 0.95;
constexpr double kShrink = 0.7;
constexpr double kGrow = 2;
/// The limit for shrinking later gaps, relative to a gap that was too short.
constexpr double kOverTooShort = 1.5;
/// The number of batches that must agree on the clock, in addition to the first.
constexpr std::size_t kAgreeing = 2;
constexpr std::size_t kMaxRejected = 5;
/// The limit of a burst's warm-up, without idling: a few batches, because each costs a gap.
constexpr double kMaxBurstWarmupSeconds = 0.05;

}  // namespace

BurstRegime::BurstRegime(double max_clock_hz, BurstLimits limits)
    : max_clock_hz_(max_clock_hz),
      limits_(limits),
      gap_seconds_(limits.first_gap_seconds),
      batch_seconds_(limits.batch_seconds) {}

/// Always until steady: some batches are needed to see that the clock is at its maximum.
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

/// Gaps continue even after enough idling: the samples that must still be taken should be in the
/// regime.
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

/// The first calls after idling may have a higher clock than the rest. A batch that is cut short
/// has only such calls, so its clocks must not be compared with those of whole batches.
bool BurstRegime::is_whole(const RegimeBatch& batch) {
  const std::size_t rounds = batch.clocks_hz.front().size();
  return 2 * rounds >= std::exchange(last_rounds_, rounds);
}

/// Return whether a clock is clearly higher than in the kept samples.
bool BurstRegime::has_risen(std::span<const double> medians_hz) const {
  return any_candidate(medians_hz, [&](std::size_t i) {
    return kDeviceTraits.high_clock_share * medians_hz[i] > kept_hz_[i];
  });
}

/// Return whether a candidate has more clocks below the burst limit than are allowed.
bool BurstRegime::has_fallen(const Clocks& clocks_hz) const {
  return any_candidate(clocks_hz, [&](std::size_t i) {
    const auto calls = static_cast<double>(clocks_hz[i].size());
    const double forgiven = calls > 1 ? std::max(1.0, kMaxShareBelow * calls) : 0;
    return count_below_top(clocks_hz[i], i) > forgiven;
  });
}

/// Return whether a clock is below the target of the gaps.
bool BurstRegime::has_slipped(std::span<const double> medians_hz) const {
  return any_candidate(medians_hz,
                       [&](std::size_t i) { return medians_hz[i] < kWantedShare * top_hz_[i]; });
}

/// Return whether a clock fell within this batch.
bool BurstRegime::fell_within(const Clocks& clocks_hz) const {
  return any_candidate(clocks_hz, [&](std::size_t i) {
    const double limit_hz = kDeviceTraits.high_clock_share * top_hz_[i];
    return clocks_hz[i].size() > 1 && clocks_hz[i].front() >= limit_hz &&
           clocks_hz[i].back() < limit_hz;
  });
}

double BurstRegime::count_below_top(std::span<const double> clocks_hz,
                                    std::size_t candidate) const {
  const double limit_hz = kDeviceTraits.high_clock_share * top_hz_[candidate];
  return static_cast<double>(
      std::ranges::count_if(clocks_hz, [&](double clock_hz) { return clock_hz < limit_hz; }));
}

/// Return the lowest clock relative to its candidate's highest.
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

/// Adapt the sizes of the next gap and batch to the last batch.
void BurstRegime::adapt(const Clocks& clocks_hz, double wall_seconds, bool slipped, bool rose) {
  if (slipped) {
    too_short_seconds_ = gap_seconds_;
    gap_seconds_ *= kGrow;
    if (fell_within(clocks_hz)) {
      batch_seconds_ = std::min(batch_seconds_, wall_seconds) / 2;
    }
  } else if (!rose) {
    // Never busy for more than half of the time, whatever the clock is: it falls with a delay.
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
  // If the regime has samples, they are worth more than continuing without it: first request the
  // end of sampling.
  if (++rejected_ < (has_samples_ ? 2 * kMaxRejected : kMaxRejected)) {
    return BatchFate::kSetAside;
  }
  refusal_ = all_have_clocks(clocks_hz)
                 ? "the clock fell below 98 % of the calls' highest clock in " +
                       std::to_string(rejected_) + " batches in a row, most recently to " +
                       one_decimal(100 * lowest_share(clocks_hz)) +
                       " %, although the GPU idled for " + one_decimal(idle_seconds()) +
                       " s in total"
                 : kUnknownClock;
  return BatchFate::kSetAllAside;
}

Outcome<Regime> BurstRegime::outcome(std::span<const std::vector<double>> clocks_hz,
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
                                 in_megahertz(top_hz_[i]) + ", the calls' highest clock"};
    }
  }
  return {Regime::kBurst, ""};
}

Warmup SustainedRegime::warmup(const Warmup& asked) const {
  Warmup warmup = asked;
  warmup.calls = std::max(asked.calls, kMinRegimeCalls);
  warmup.steady = true;
  warmup.min_steady_seconds = limits_.min_seconds;
  warmup.max_steady_seconds = limits_.max_seconds;
  warmup.max_series_seconds = 2 * limits_.min_seconds;
  return warmup;
}

Outcome<Regime> SustainedRegime::outcome(std::span<const std::vector<double>> clocks_hz,
                                         bool steady) const {
  const std::vector<std::vector<double>> known_hz = known_clocks(clocks_hz);
  if (!all_have_clocks(known_hz)) {
    return {Regime::kAsIs, kUnknownClock};
  }
  if (steady) {
    return {Regime::kSustained, ""};
  }
  double lowest_hz = std::numeric_limits<double>::infinity();
  double highest_hz = 0;
  for (const std::vector<double>& candidate_hz : known_hz) {
    const auto [low, high] = std::ranges::minmax_element(candidate_hz);
    lowest_hz = std::min(lowest_hz, *low);
    highest_hz = std::max(highest_hz, *high);
  }
  return {Regime::kAsIs,
          "times or clocks still drifted after " + one_decimal(limits_.max_seconds) +
              " s of load, or the calls were too few to tell; the samples' clocks are between " +
              in_megahertz(lowest_hz) + " and " + in_megahertz(highest_hz)};
}

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
  return any_candidate(clocks_hz, [&](std::size_t i) {
    return kDeviceTraits.high_clock_share * clocks_hz[i] > last_hz_[i];
  });
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
