#include "timing/judge/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "timing/judge/order_statistics.h"

namespace convtime {
namespace {

constexpr Interval kUnbounded{-kInfinity, kInfinity};

/// How many blocks a run is cut in, to see whether they differ by more than chance: few long ones
/// show what drifts slowly, many short ones tell more surely of what does not.
constexpr std::array<std::size_t, 3> kBlockCounts = {5, 10, 20};
/// With shorter ones, chance alone often leaves less than an interval needs.
constexpr std::size_t kMinBlockLength = 8;
/// Up to these, batches are compared by their medians: there is too little to count.
constexpr std::size_t kFewBatches = 5;
constexpr std::size_t kFewSamples = kBlockCounts.front() * kMinBlockLength - 1;
/// Places that tell within from between.
constexpr std::size_t kMinRepeatedPlaces = 4;

/// Of a median between two of the clock's values that is taken to be that of grouped data: at most
/// 0.09 ticks of its own, and some for chance.
constexpr double kTickShareOfSpreadPhases = 0.125;
/// Where all samples show the same tick.
constexpr double kTickShareOfEqualPhases = 0.5;

/// Student's t for kConfidence, by degrees of freedom from 1 on.
constexpr std::array kStudentQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                          2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                          2.131,  2.120, 2.110, 2.101, 2.093};
static_assert(kStudentQuantiles.size() + 1 == kBlockCounts.back());

double student_quantile(std::size_t groups) { return kStudentQuantiles.at(groups - 2); }

Interval hull(Interval a, Interval b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

/// Whether equal values are different ones that a clock's tick made equal.
enum class Ties { kKeep, kSpread };

std::vector<double> ordered(std::span<const double> values, Ties ties) {
  return ties == Ties::kSpread ? spread_ties(sorted(values)) : sorted(values);
}

double median_of(std::span<const double> values, Ties ties) {
  return quantile_of_sorted(ordered(values, ties), 0.5);
}

/// Where each block of consecutive samples begins, and after the last one where it ends.
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

/// What is left of a batch, where a warm-up's stretch begins or sampling ends within it, is no
/// batch by itself: those of less than half the longest one's length go with their neighbour.
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

/// Neighbours put together until there are no more than `count`.
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

/// How many times as much blocks differ, in how many of their values lie above the middle, as those
/// of independent values would. What few blocks leave open is part of it, by Student's t.
double variance_inflation(std::span<const double> values, double middle, const Blocks& blocks) {
  const auto score = [&](double value) { return value > middle ? 1 : value < middle ? 0 : 0.5; };
  double total = 0;
  for (const double value : values) {
    total += score(value);
  }
  const double mean = total / static_cast<double>(values.size());
  double squares = 0;
  for (std::size_t block = 0; block < count_of(blocks); ++block) {
    const auto length = static_cast<double>(blocks[block + 1] - blocks[block]);
    double above = 0;
    for (std::size_t i = blocks[block]; i < blocks[block + 1]; ++i) {
      above += score(values[i]);
    }
    const double deviation = above / length - mean;
    squares += length * deviation * deviation;
  }
  constexpr double kVarianceOfHalves = 0.25;
  const double inflation = squares / static_cast<double>(count_of(blocks) - 1) / kVarianceOfHalves;
  const double for_few = student_quantile(count_of(blocks)) / kNormalQuantile;
  return inflation * for_few * for_few;
}

bool are_few(const Blocks& batches) {
  return count_of(batches) <= kFewBatches || batches.back() <= kFewSamples;
}

/// How many samples are worth one independent value; 1 at least.
double clustering(std::span<const double> values, double middle, const Blocks& batches) {
  double inflation = 1;
  for (const std::size_t count : kBlockCounts) {
    if (values.size() >= count * kMinBlockLength) {
      const Blocks blocks = equal_blocks(values.size(), count);
      inflation = std::max(inflation, variance_inflation(values, middle, blocks));
    }
  }
  if (!are_few(batches)) {
    const Blocks blocks = merged(batches, kBlockCounts.back());
    inflation = std::max(inflation, variance_inflation(values, middle, blocks));
  }
  return inflation;
}

/// As values_outside_interval(), for values of which `inflation` are worth one.
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

/// Student's, of the batches' medians. Batches of a sample each say no more than their samples.
Interval interval_of_few(std::span<const double> values, const Blocks& batches, Ties ties,
                         double middle) {
  std::vector<double> medians;
  double mean = 0;
  for (std::size_t batch = 0; batch < count_of(batches); ++batch) {
    const std::size_t length = batches[batch + 1] - batches[batch];
    medians.push_back(median_of(values.subspan(batches[batch], length), ties));
    mean += medians.back() / static_cast<double>(count_of(batches));
  }
  double squares = 0;
  for (const double median : medians) {
    squares += (median - mean) * (median - mean);
  }
  const auto count = static_cast<double>(medians.size());
  const double half = student_quantile(medians.size()) * std::sqrt(squares / (count - 1) / count);
  return std::isfinite(half) ? Interval{middle - half, middle + half} : kUnbounded;
}

std::vector<double> medians_of_places(std::span<const double> values,
                                      std::span<const std::size_t> places) {
  std::map<std::size_t, std::vector<double>> by_place;
  for (std::size_t i = 0; i < places.size(); ++i) {
    by_place[places[i]].push_back(values[i]);
  }
  std::vector<double> medians;
  for (const auto& [place, at_place] : by_place) {
    medians.push_back(quantile(at_place, 0.5));
  }
  return medians;
}

/// From the values alone: `interval` is what was sampled.
Estimate estimate(std::span<const double> values, std::span<const std::size_t> places,
                  std::span<const std::size_t> batch_of_each, Ties ties) {
  const std::vector<double> all = ordered(values, ties);
  const double value = quantile_of_sorted(all, 0.5);
  const Blocks batches =
      batch_of_each.empty() ? Blocks{0, values.size()} : without_remnants(blocks_of(batch_of_each));
  // Equal values are neither above nor below: not spread.
  const double middle = ties == Ties::kKeep ? value : quantile(values, 0.5);
  const double inflation = clustering(values, middle, batches);
  Interval sampled = interval_between(all, samples_outside_interval(all.size(), inflation));
  if (!std::isfinite(sampled.low) && values.size() > kFewSamples) {
    // Worth less than order statistics need: it drifts, but not everywhere.
    const Blocks blocks = equal_blocks(values.size(), kBlockCounts.front());
    sampled = interval_of_few(values, blocks, ties, value);
  }
  IntervalOver over = IntervalOver::kSamples;
  std::size_t count = values.size();

  const std::vector<double> at_places =
      places.empty() ? std::vector<double>{} : medians_of_places(values, places);
  if (at_places.size() >= kMinIntervalValues) {
    over = IntervalOver::kPlacements;
    count = at_places.size();
    sampled =
        hull(sampled, interval_between(ordered(at_places, ties), values_outside_interval(count)));
  } else if (count_of(batches) > 1) {
    over = IntervalOver::kBatches;
    count = count_of(batches);
    if (are_few(batches) && 2 * count <= values.size()) {
      const Blocks few = merged(batches, kBlockCounts.back());
      sampled = hull(sampled, interval_of_few(values, few, ties, value));
    }
  }
  return {value, sampled, sampled, over, count};
}

/// Whether samples show several of the clock's ticks, as they do where it ticks at another phase of
/// each call.
bool phases_are_spread(const std::vector<double>& ordered, double tick) {
  constexpr double kTickPart = 0.9;  // ticks are rounded to nanoseconds
  return quantile_of_sorted(ordered, 0.9) - quantile_of_sorted(ordered, 0.1) >= kTickPart * tick;
}

/// How far a median may be off because the clock ticks. Calls without work take 0 by any clock.
double tick_error(const std::vector<double>& ordered, double tick) {
  if (ordered.front() == 0 && ordered.back() == 0) {
    return 0;
  }
  return tick *
         (phases_are_spread(ordered, tick) ? kTickShareOfSpreadPhases : kTickShareOfEqualPhases);
}

/// Irrational steps, so that there is no pattern in where times lie within their ticks.
constexpr double kGoldenRatio = 0.6180339887498949;
constexpr double kSquareRootOfTwo = 0.4142135623730951;

/// The times anywhere within their ticks, in equal shares.
std::vector<double> within_ticks(std::span<const double> raw, double tick, double step) {
  std::vector<double> seconds(raw.begin(), raw.end());
  double phase = 0;
  for (double& value : seconds) {
    phase = std::fmod(phase + step, 1.0);
    value += tick * (phase - 0.5);
  }
  return seconds;
}

/// One candidate's times, as a ratio takes them from a clock that ticks.
struct TickedTimes {
  std::vector<double> seconds;  ///< those that show several ticks are anywhere within theirs
  double relative_error;        ///< of their median; not finite where that is 0

  TickedTimes(std::span<const double> raw, double tick, double step)
      : seconds(raw.begin(), raw.end()), relative_error(0) {
    if (tick == 0) {
      return;
    }
    const std::vector<double> ordered = sorted(raw);
    relative_error = tick_error(ordered, tick) / quantile_of_sorted(ordered, 0.5);
    if (phases_are_spread(ordered, tick)) {
      seconds = within_ticks(raw, tick, step);
    }
  }
};

double ratio_of(double over, double under) {
  if (under > 0) {
    return over / under;
  }
  if (over == under) {
    return 1;
  }
  return over > under ? kInfinity : 0;
}

/// Of times that are all longer by `shift` than they are said to be.
std::vector<double> ratios_of(std::span<const double> over, std::span<const double> under,
                              double shift) {
  std::vector<double> ratios(over.size());
  std::transform(over.begin(), over.end(), under.begin(), ratios.begin(),
                 [&](double a, double b) { return ratio_of(a + shift, b + shift); });
  return ratios;
}

std::size_t count_distinct(std::span<const std::size_t> values) {
  std::vector<std::size_t> ordered(values.begin(), values.end());
  std::sort(ordered.begin(), ordered.end());
  return static_cast<std::size_t>(std::unique(ordered.begin(), ordered.end()) - ordered.begin());
}

/// Of the pair: those of the candidate that came around to the same ones more often, if they are
/// enough for an interval.
std::span<const std::size_t> places_of(const CandidateTimes& a, const CandidateTimes& b) {
  const std::size_t of_a = count_distinct(a.places);
  const std::size_t of_b = count_distinct(b.places);
  if (of_a < kMinIntervalValues || of_b < kMinIntervalValues) {
    return of_a < of_b ? b.places : a.places;
  }
  return of_a < of_b ? a.places : b.places;
}

/// Neither times nor their ratios are negative, whatever the spread of a few of them.
Interval not_below_zero(const Interval& interval, double value) {
  const bool bounded = std::isfinite(interval.low) && value >= 0;
  return {bounded ? std::max(interval.low, 0.0) : interval.low, interval.high};
}

void require_matching(const CandidateTimes& samples, std::span<const std::size_t> batches) {
  const auto require = [&](std::span<const std::size_t> of_samples, const std::string& what) {
    if (!of_samples.empty() && of_samples.size() != samples.seconds.size()) {
      throw std::invalid_argument(what + " must be known of all samples or of none, got " +
                                  std::to_string(of_samples.size()) + " of " +
                                  std::to_string(samples.seconds.size()));
    }
  };
  require(samples.places, "places");
  require(batches, "batches");
}

}  // namespace

const char* to_string(IntervalOver over) {
  switch (over) {
    case IntervalOver::kSamples:
      return "samples";
    case IntervalOver::kBatches:
      return "batches";
    case IntervalOver::kPlacements:
      return "placements";
  }
  return "unknown";
}

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
  const std::vector<double> ordered = sorted(samples.seconds);
  const double tick = resolution.tick_seconds;
  const double by_tick = tick_error(ordered, tick);
  // Where the tick is known, equal samples are those within it: its records may be rounded to
  // nanoseconds, by which they are not equal.
  const bool are_within_ticks = tick > 0 && phases_are_spread(ordered, tick);
  Estimate found = are_within_ticks
                       ? estimate(within_ticks(samples.seconds, tick, kGoldenRatio), samples.places,
                                  batches, Ties::kKeep)
                       : estimate(samples.seconds, samples.places, batches, Ties::kSpread);
  found.value = median(samples.seconds);
  found.interval = hull(found.sampled, {found.value - by_tick, found.value + by_tick});
  found.interval.low -= resolution.uncertainty_seconds;
  found.interval.high += resolution.uncertainty_seconds;
  found.interval = not_below_zero(found.interval, found.value);
  return found;
}

Estimate estimate_ratio(const CandidateTimes& over, const CandidateTimes& under,
                        std::span<const std::size_t> batches, const Resolution& resolution) {
  if (over.seconds.size() != under.seconds.size()) {
    throw std::invalid_argument("a ratio needs as many samples of one as of the other, got " +
                                std::to_string(over.seconds.size()) + " and " +
                                std::to_string(under.seconds.size()));
  }
  require_matching(over, batches);
  require_matching(under, batches);
  const TickedTimes above(over.seconds, resolution.tick_seconds, kGoldenRatio);
  const TickedTimes below(under.seconds, resolution.tick_seconds, kSquareRootOfTwo);
  const std::span<const std::size_t> places = places_of(over, under);
  const auto estimate_shifted = [&](double shift) {
    return estimate(ratios_of(above.seconds, below.seconds, shift), places, batches, Ties::kKeep);
  };

  Estimate found = estimate_shifted(0);
  if (resolution.uncertainty_seconds > 0) {
    for (const double shift : {-resolution.uncertainty_seconds, resolution.uncertainty_seconds}) {
      found.interval = hull(found.interval, estimate_shifted(shift).interval);
    }
  }
  const double by_tick =
      std::abs(found.value) * std::hypot(above.relative_error, below.relative_error);
  if (std::isfinite(by_tick)) {
    found.interval = hull(found.interval, {found.value - by_tick, found.value + by_tick});
  }
  found.interval = not_below_zero(found.interval, found.value);
  return found;
}

std::optional<double> placement_variance_share(const CandidateTimes& samples) {
  require_matching(samples, {});
  std::map<std::size_t, std::vector<double>> by_place;
  for (std::size_t i = 0; i < samples.places.size(); ++i) {
    by_place[samples.places[i]].push_back(samples.seconds[i]);
  }
  const auto repeated = std::count_if(by_place.begin(), by_place.end(),
                                      [](const auto& place) { return place.second.size() > 1; });
  if (static_cast<std::size_t>(repeated) < kMinRepeatedPlaces) {
    return std::nullopt;
  }
  const auto mean_of = [](std::span<const double> values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
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
