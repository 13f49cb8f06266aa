#include "timing/judge/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace convtime {
namespace {

constexpr Interval kUnbounded{-kInfinity, kInfinity};

/// The numbers of blocks into which a run is divided to see whether they differ by more than
/// chance. Few long blocks show slow drift; many short ones give a more certain answer without
/// drift.
constexpr std::array<std::size_t, 3> kBlockCounts = {5, 10, 20};
/// With shorter blocks, chance alone often leaves fewer values than an interval needs.
constexpr std::size_t kMinBlockLength = 8;
/// Up to this many batches are compared by their medians: there are too few values to count.
constexpr std::size_t kFewBatches = 5;
constexpr std::size_t kFewSamples = kBlockCounts.front() * kMinBlockLength - 1;
/// Placements needed to distinguish variance within placements from variance between them.
constexpr std::size_t kMinRepeatedPlaces = 4;

/// Times that span at most this many steps of their clock, from the 10th to the 90th percentile,
/// are dominated by rounding.
constexpr double kRoundedTicks = 1.5;
/// Up to this many, the variation is mostly rounding, whose phases are random: five blocks differ
/// more by chance alone than ten blocks with drift would.
constexpr double kMostlyRoundedTicks = 6;
constexpr std::size_t kFewestBlocksOfRounded = 10;
/// Of `n` equal times, at most this many may have been about to show the next tick, at kConfidence:
/// (1 - p)^n is (1 - kConfidence) / 2.
constexpr double kUnseenTicks = 3.689;

/// Student's t for kConfidence, for degrees of freedom from 1.
constexpr std::array kStudentQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                          2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                          2.131,  2.120, 2.110, 2.101, 2.093};
static_assert(kStudentQuantiles.size() + 1 == kBlockCounts.back());

/// For that many groups or values, at least two.
double student_quantile(std::size_t groups) {
  if (groups - 2 < kStudentQuantiles.size()) {
    return kStudentQuantiles[groups - 2];
  }
  // The first terms of the expansion (Abramowitz and Stegun, 26.7.5).
  constexpr double kFirst =
      (kNormalQuantile * kNormalQuantile * kNormalQuantile + kNormalQuantile) / 4;
  return kNormalQuantile + kFirst / static_cast<double>(groups - 1);
}

Interval hull(Interval a, Interval b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

/// Whether equal values are distinct values that a clock's tick made equal.
enum class Ties { kKeep, kSpread };

Interval widened(const Interval& interval, double by) {
  return {interval.low - by, interval.high + by};
}

std::vector<double> ordered(std::span<const double> values, Ties ties) {
  return ties == Ties::kSpread ? spread_ties(sorted(values)) : sorted(values);
}

double median_of(std::span<const double> values, Ties ties) {
  return quantile_of_sorted(ordered(values, ties), 0.5);
}

/// The start of each block of consecutive samples, followed by the end of the last.
using Blocks = std::vector<std::size_t>;

std::size_t count_of(const Blocks& blocks) { return blocks.size() - 1; }

Blocks equal_blocks(std::size_t samples, std::size_t count) {
  Blocks blocks;
  for (std::size_t block = 0; block <= count; ++block) {
    blocks.push_back(block * samples / count);
  }
  return blocks;
}

Blocks blocks_of(std::span<const std::size_t> batches) {
  Blocks blocks = {0};
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if (batches[i] != batches[i - 1]) {
      blocks.push_back(i);
    }
  }
  blocks.push_back(batches.size());
  return blocks;
}

/// Merge remnants of batches with a neighbor: batches of less than half the longest one's length. A
/// remnant is left where a warm-up's series starts or sampling ends within a batch.
Blocks without_remnants(const Blocks& batches) {
  std::size_t longest = 0;
  for (std::size_t batch = 0; batch < count_of(batches); ++batch) {
    longest = std::max(longest, batches[batch + 1] - batches[batch]);
  }
  Blocks result = {0};
  for (const std::size_t end : batches) {
    if (2 * (end - result.back()) >= longest) {
      result.push_back(end);
    }
  }
  result.back() = batches.back();
  return result;
}

/// Merge neighbors until at most `count` blocks are left.
Blocks merged(const Blocks& blocks, std::size_t count) {
  if (count_of(blocks) <= count) {
    return blocks;
  }
  Blocks result;
  for (const std::size_t boundary : equal_blocks(count_of(blocks), count)) {
    result.push_back(blocks[boundary]);
  }
  return result;
}

/// Return the ratio of the variance between blocks to the variance of independent values, whose
/// variance is `variance`. Student's t includes the uncertainty due to few blocks.
double variance_inflation(std::span<const double> scores, double variance, const Blocks& blocks) {
  const double mean = mean_of(scores);
  double squares = 0;
  for (std::size_t block = 0; block < count_of(blocks); ++block) {
    const std::size_t length = blocks[block + 1] - blocks[block];
    const double deviation = mean_of(scores.subspan(blocks[block], length)) - mean;
    squares += static_cast<double>(length) * deviation * deviation;
  }
  const double inflation = squares / static_cast<double>(count_of(blocks) - 1) / variance;
  const double for_few = student_quantile(count_of(blocks)) / kNormalQuantile;
  return inflation * for_few * for_few;
}

bool are_few(const Blocks& batches) {
  return count_of(batches) <= kFewBatches || batches.back() <= kFewSamples;
}

/// Like values_outside_interval(), if `inflation` values are worth one independent value.
std::size_t samples_outside_interval(std::size_t count, double inflation) {
  if (inflation <= 1) {
    return values_outside_interval(count);
  }
  const double independent = std::floor(static_cast<double>(count) / inflation);
  if (independent < kMinIntervalValues) {
    return 0;
  }
  const auto outside =
      static_cast<double>(values_outside_interval(static_cast<std::size_t>(independent)));
  return static_cast<std::size_t>(static_cast<double>(count) * outside / independent);
}

/// An estimator of the center of values, with its uncertainty.
class Center {
 public:
  virtual ~Center() = default;

  virtual double of(std::span<const double> values) const = 0;
  /// For the few values of one placement.
  virtual double at_place(std::span<const double> values) const { return of(values); }
  /// At kConfidence, if `inflation` values are worth one; unbounded for too few values.
  virtual Interval interval(std::span<const double> values, double inflation) const = 0;
  /// The influence of each value on the center.
  virtual std::vector<double> scores(std::span<const double> values) const = 0;
  /// The variance for scores of independent values.
  virtual double variance(std::span<const double> scores) const = 0;
  /// The smallest number of blocks in which to look for drift.
  virtual std::size_t fewest_blocks() const = 0;
};

class MedianCenter final : public Center {
 public:
  explicit MedianCenter(Ties ties, std::size_t fewest_blocks = kBlockCounts.front())
      : ties_(ties), fewest_blocks_(fewest_blocks) {}

  double of(std::span<const double> values) const override { return median_of(values, ties_); }
  double at_place(std::span<const double> values) const override { return quantile(values, 0.5); }
  Interval interval(std::span<const double> values, double inflation) const override {
    return interval_between(ordered(values, ties_),
                            samples_outside_interval(values.size(), inflation));
  }
  /// Whether each value is above the middle. Equal values are neither above nor below: they are not
  /// spread.
  std::vector<double> scores(std::span<const double> values) const override {
    const double middle = quantile(values, 0.5);
    std::vector<double> scores(values.size());
    std::transform(values.begin(), values.end(), scores.begin(), [&](double value) {
      return value > middle ? 1 : value < middle ? 0 : 0.5;
    });
    return scores;
  }
  double variance(std::span<const double> /*scores*/) const override {
    constexpr double kVarianceOfHalves = 0.25;
    return kVarianceOfHalves;
  }
  std::size_t fewest_blocks() const override { return fewest_blocks_; }

 private:
  Ties ties_;
  std::size_t fewest_blocks_;
};

class MeanCenter final : public Center {
 public:
  double of(std::span<const double> values) const override { return mean_of(values); }
  Interval interval(std::span<const double> values, double inflation) const override {
    const double independent = static_cast<double>(values.size()) / std::max(inflation, 1.0);
    if (independent < kMinIntervalValues) {
      return kUnbounded;
    }
    const double mean = mean_of(values);
    const double half = student_quantile(static_cast<std::size_t>(independent)) *
                        std::sqrt(variance(values) / independent);
    return {mean - half, mean + half};
  }
  std::vector<double> scores(std::span<const double> values) const override {
    return {values.begin(), values.end()};
  }
  double variance(std::span<const double> scores) const override {
    const double stdev = stdev_of(scores, mean_of(scores));
    return stdev * stdev;
  }
  std::size_t fewest_blocks() const override { return kFewestBlocksOfRounded; }
};

/// Return how many samples are worth one independent value; at least 1.
double clustering(const Center& center, std::span<const double> values, const Blocks& batches) {
  const std::vector<double> scores = center.scores(values);
  const double variance = values.size() < 2 ? 0 : center.variance(scores);
  if (!(variance > 0)) {
    return 1;  // all are equal
  }
  double inflation = 1;
  for (const std::size_t count : kBlockCounts) {
    if (count >= center.fewest_blocks() && values.size() >= count * kMinBlockLength) {
      const Blocks blocks = equal_blocks(values.size(), count);
      inflation = std::max(inflation, variance_inflation(scores, variance, blocks));
    }
  }
  if (!are_few(batches)) {
    const Blocks blocks = merged(batches, kBlockCounts.back());
    inflation = std::max(inflation, variance_inflation(scores, variance, blocks));
  }
  return inflation;
}

/// Student's interval from the batches' centers. Batches of one sample each add nothing to their
/// samples.
Interval interval_of_few(const Center& center, std::span<const double> values,
                         const Blocks& batches, double middle) {
  std::vector<double> centers;
  for (std::size_t batch = 0; batch < count_of(batches); ++batch) {
    const std::size_t length = batches[batch + 1] - batches[batch];
    centers.push_back(center.of(values.subspan(batches[batch], length)));
  }
  const double half = student_quantile(centers.size()) * stdev_of(centers, mean_of(centers)) /
                      std::sqrt(static_cast<double>(centers.size()));
  return std::isfinite(half) ? Interval{middle - half, middle + half} : kUnbounded;
}

std::map<std::size_t, std::vector<double>> group_by_place(std::span<const double> values,
                                                          std::span<const std::size_t> places) {
  std::map<std::size_t, std::vector<double>> by_place;
  for (std::size_t i = 0; i < places.size(); ++i) {
    by_place[places[i]].push_back(values[i]);
  }
  return by_place;
}

std::vector<double> centers_of_places(const Center& center, std::span<const double> values,
                                      std::span<const std::size_t> places) {
  std::vector<double> centers;
  for (const auto& [place, at_place] : group_by_place(values, places)) {
    centers.push_back(center.at_place(at_place));
  }
  return centers;
}

/// Estimate from the values alone; `interval` is the sampled interval.
Estimate estimate(const Center& center, std::span<const double> values,
                  std::span<const std::size_t> places, std::span<const std::size_t> batch_of_each) {
  const double value = center.of(values);
  const Blocks batches =
      batch_of_each.empty() ? Blocks{0, values.size()} : without_remnants(blocks_of(batch_of_each));
  Interval sampled = center.interval(values, clustering(center, values, batches));
  if (!std::isfinite(sampled.low) && values.size() > kFewSamples) {
    // Fewer effective values than the interval needs: there is drift, but not everywhere.
    sampled =
        interval_of_few(center, values, equal_blocks(values.size(), kBlockCounts.front()), value);
  }
  IntervalOver over = IntervalOver::kSamples;
  std::size_t count = values.size();

  const std::vector<double> at_places = centers_of_places(center, values, places);
  if (at_places.size() >= kMinIntervalValues) {
    over = IntervalOver::kPlacements;
    count = at_places.size();
    sampled = hull(sampled, center.interval(at_places, 1));
  } else if (count_of(batches) > 1) {
    over = IntervalOver::kBatches;
    count = count_of(batches);
    if (are_few(batches) && 2 * count <= values.size()) {
      const Blocks few = merged(batches, kBlockCounts.back());
      sampled = hull(sampled, interval_of_few(center, values, few, value));
    }
  }
  return {value, sampled, sampled, over, count};
}

/// Times of one candidate, estimated from a clock that ticks.
///
/// If the tick hides their spread, their median jumps from one tick to the next. Their mean does
/// not: calls start at uniformly distributed phases of the tick, so rounding up and rounding down
/// cancel (nonsubtractive dither; Lipshitz, Wannamaker and Vanderkooy, 1992). Times that are more
/// than a tick away from most others count as one tick away, which makes the mean a median of the
/// unrounded times. Other times are anywhere within their ticks.
class TickedTimes {
 public:
  TickedTimes(std::span<const double> raw, double tick, double step)
      : seconds_(raw.begin(), raw.end()) {
    const std::vector<double> ordered = sorted(raw);
    if (tick == 0 || (ordered.front() == 0 && ordered.back() == 0)) {
      return;  // calls without work take 0 with any clock
    }
    const double low = quantile_of_sorted(ordered, 0.1);
    const double high = quantile_of_sorted(ordered, 0.9);
    if (high - low < kRoundedTicks * tick) {
      unseen_ = tick * kUnseenTicks / static_cast<double>(raw.size());
      for (double& value : seconds_) {
        value = std::clamp(value, low - tick, high + tick);
      }
    } else {
      spread(tick, step);
      if (high - low < kMostlyRoundedTicks * tick) {
        fewest_blocks_ = kFewestBlocksOfRounded;
      }
    }
    ties_ = Ties::kKeep;
  }

  std::span<const double> seconds() const { return seconds_; }
  bool rounded() const { return unseen_ > 0; }
  /// Return the maximum error of a mean of rounded times that are all equal; 0 for other times.
  double unseen() const { return unseen_; }

  std::unique_ptr<Center> center() const {
    if (rounded()) {
      return std::make_unique<MeanCenter>();
    }
    return std::make_unique<MedianCenter>(ties_, fewest_blocks_);
  }

 private:
  void spread(double tick, double step) {
    double phase = 0;
    for (double& value : seconds_) {
      phase = std::fmod(phase + step, 1.0);
      value += tick * (phase - 0.5);
    }
  }

  std::vector<double> seconds_;
  Ties ties_ = Ties::kSpread;
  std::size_t fewest_blocks_ = kBlockCounts.front();
  double unseen_ = 0;
};

/// Irrational steps avoid patterns in the positions of times within their ticks.
constexpr double kGoldenRatio = 0.6180339887498949;
constexpr double kSquareRootOfTwo = 0.4142135623730951;

double ratio_of(double over, double under) {
  if (under > 0) {
    return over / under;
  }
  if (over == under) {
    return 1;
  }
  return over > under ? kInfinity : 0;
}

/// Ratios of times after `shift` is added to all of them.
std::vector<double> ratios_of(std::span<const double> over, std::span<const double> under,
                              double shift) {
  std::vector<double> ratios(over.size());
  std::transform(over.begin(), over.end(), under.begin(), ratios.begin(),
                 [&](double a, double b) { return ratio_of(a + shift, b + shift); });
  return ratios;
}

std::size_t count_distinct(std::span<const std::size_t> values) {
  std::vector<std::size_t> ordered(values.begin(), values.end());
  std::ranges::sort(ordered);
  return static_cast<std::size_t>(std::unique(ordered.begin(), ordered.end()) - ordered.begin());
}

/// Return the placements of the candidate that repeated its placements more often, if they suffice
/// for an interval.
std::span<const std::size_t> places_of(const CandidateTimes& a, const CandidateTimes& b) {
  const std::size_t of_a = count_distinct(a.places);
  const std::size_t of_b = count_distinct(b.places);
  if (of_a < kMinIntervalValues || of_b < kMinIntervalValues) {
    return of_a < of_b ? b.places : a.places;
  }
  return of_a < of_b ? a.places : b.places;
}

/// The ratio of two candidates' times, per round if possible.
class RatioOfTimes {
 public:
  RatioOfTimes(const TickedTimes& above, const TickedTimes& below,
               std::span<const std::size_t> places, std::span<const std::size_t> batches)
      : above_(above), below_(below), places_(places), batches_(batches) {}

  /// The estimate for times after `shift` is added to all of them.
  Estimate shifted(double shift) const {
    if (above_.rounded() && below_.rounded() && mean_of(below_.seconds()) + shift > 0) {
      return of_means(shift);
    }
    if (above_.rounded() != below_.rounded()) {
      const Estimate over = estimate(*above_.center(), above_.seconds(), places_, batches_);
      const Estimate under = estimate(*below_.center(), below_.seconds(), places_, batches_);
      if (under.value + shift > 0 && over.value + shift > 0) {
        return of_both(over, under, shift);
      }
    }
    return estimate(MedianCenter(Ties::kKeep), ratios_of(above_.seconds(), below_.seconds(), shift),
                    places_, batches_);
  }

 private:
  /// The ratio of the means (Cochran, Sampling Techniques, 2.11). The interval follows from each
  /// round's deviation from that ratio.
  Estimate of_means(double shift) const {
    const double under = mean_of(below_.seconds()) + shift;
    const double ratio = (mean_of(above_.seconds()) + shift) / under;
    std::vector<double> linear(above_.seconds().size());
    for (std::size_t i = 0; i < linear.size(); ++i) {
      const double residual = above_.seconds()[i] + shift - ratio * (below_.seconds()[i] + shift);
      linear[i] = ratio + residual / under;
    }
    Estimate result = estimate(MeanCenter(), linear, places_, batches_);
    result.sampled =
        widened(result.sampled, std::hypot(above_.unseen(), ratio * below_.unseen()) / under);
    result.interval = result.sampled;
    return result;
  }

  /// The ratio of a median and a mean, which have no rounds in common.
  Estimate of_both(const Estimate& over, const Estimate& under, double shift) const {
    const double ratio = (over.value + shift) / (under.value + shift);
    const auto relative_half = [&](const Estimate& one, double unseen) {
      return ((one.sampled.high - one.sampled.low) / 2 + unseen) / (one.value + shift);
    };
    const double half = ratio * std::hypot(relative_half(over, above_.unseen()),
                                           relative_half(under, below_.unseen()));
    Estimate result = over;
    result.value = ratio;
    result.sampled = std::isfinite(half) ? Interval{ratio - half, ratio + half} : kUnbounded;
    result.interval = result.sampled;
    return result;
  }

  const TickedTimes& above_;
  const TickedTimes& below_;
  std::span<const std::size_t> places_;
  std::span<const std::size_t> batches_;
};

/// Neither times nor their ratios are negative, regardless of the spread of a few samples.
Interval not_below_zero(const Interval& interval, double value) {
  const bool bounded = std::isfinite(interval.low) && value >= 0;
  return {bounded ? std::max(interval.low, 0.0) : interval.low, interval.high};
}

void require_matching(const CandidateTimes& samples, std::span<const std::size_t> batches) {
  const auto require = [&](std::span<const std::size_t> of_samples, const std::string& what) {
    if (!of_samples.empty() && of_samples.size() != samples.seconds.size()) {
      throw std::invalid_argument(what + " must be given for all samples or for none, got " +
                                  std::to_string(of_samples.size()) + " of " +
                                  std::to_string(samples.seconds.size()));
    }
  };
  require(samples.places, "places");
  require(batches, "batches");
}

}  // namespace

double relative_noise(const Estimate& estimate) {
  const double width = estimate.sampled.high - estimate.sampled.low;
  if (width == 0) {
    return 0;
  }
  return estimate.value > 0 ? width / 2 / estimate.value : kInfinity;
}

Estimate estimate_median(const CandidateTimes& samples, std::span<const std::size_t> batches,
                         const Resolution& resolution) {
  require_matching(samples, batches);
  const TickedTimes times(samples.seconds, resolution.tick_seconds, kGoldenRatio);
  Estimate result = estimate(*times.center(), times.seconds(), samples.places, batches);
  result.sampled = widened(result.sampled, times.unseen());
  result.interval =
      not_below_zero(widened(result.sampled, resolution.uncertainty_seconds), result.value);
  return result;
}

Estimate estimate_ratio(const CandidateTimes& over, const CandidateTimes& under,
                        std::span<const std::size_t> batches, const Resolution& resolution) {
  if (over.seconds.size() != under.seconds.size()) {
    throw std::invalid_argument("a ratio needs equally many samples of both candidates, got " +
                                std::to_string(over.seconds.size()) + " and " +
                                std::to_string(under.seconds.size()));
  }
  require_matching(over, batches);
  require_matching(under, batches);
  const TickedTimes above(over.seconds, resolution.tick_seconds, kGoldenRatio);
  const TickedTimes below(under.seconds, resolution.tick_seconds, kSquareRootOfTwo);
  const RatioOfTimes ratio(above, below, places_of(over, under), batches);

  Estimate result = ratio.shifted(0);
  if (resolution.uncertainty_seconds > 0) {
    for (const double shift : {-resolution.uncertainty_seconds, resolution.uncertainty_seconds}) {
      result.interval = hull(result.interval, ratio.shifted(shift).interval);
    }
  }
  result.interval = not_below_zero(result.interval, result.value);
  return result;
}

std::optional<double> placement_variance_share(const CandidateTimes& samples) {
  require_matching(samples, {});
  const auto by_place = group_by_place(samples.seconds, samples.places);
  const auto repeated =
      std::ranges::count_if(by_place, [](const auto& place) { return place.second.size() > 1; });
  if (static_cast<std::size_t>(repeated) < kMinRepeatedPlaces) {
    return std::nullopt;
  }
  const double mean = mean_of(samples.seconds);
  const auto total = static_cast<double>(samples.seconds.size());
  const auto groups = static_cast<double>(by_place.size());
  double between = 0;
  double within = 0;
  double squared_counts = 0;
  for (const auto& [place, seconds] : by_place) {
    const auto count = static_cast<double>(seconds.size());
    const double at_place = mean_of(seconds);
    between += count * (at_place - mean) * (at_place - mean);
    squared_counts += count * count;
    for (const double value : seconds) {
      within += (value - at_place) * (value - at_place);
    }
  }
  const double within_variance = within / (total - groups);
  const double per_place = (total - squared_counts / total) / (groups - 1);
  const double place_variance =
      std::max(0.0, (between / (groups - 1) - within_variance) / per_place);
  const double variance = place_variance + within_variance;
  return variance > 0 ? place_variance / variance : 0;
}

}  // namespace convtime
