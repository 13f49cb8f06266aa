#include "timing/judge/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "helpers.h"
#include "timing/judge/statistics.h"
#include "timing/judge/steadiness.h"

namespace convtime {
namespace {

using Numbers = std::vector<std::size_t>;
using Random = std::mt19937;

/// Around a median of 1, with a tail to the right, as times have it.
double noisy(Random& random, double sigma = 0.01) {
  return std::exp(std::normal_distribution<double>(0, sigma)(random));
}

std::vector<double> drawn(std::size_t count, const std::function<double()>& draw) {
  std::vector<double> values(count);
  std::ranges::generate(values, draw);
  return values;
}

Estimate ratio_of(const std::vector<double>& over, const std::vector<double>& under,
                  double uncertainty_seconds = 0) {
  return estimate_ratio({over}, {under}, {}, {.uncertainty_seconds = uncertainty_seconds});
}

void expect_interval(const Estimate& estimate, double value, double low, double high) {
  EXPECT_DOUBLE_EQ(estimate.value, value);
  EXPECT_DOUBLE_EQ(estimate.interval.low, low);
  EXPECT_DOUBLE_EQ(estimate.interval.high, high);
}

double noise_of(const std::vector<double>& values) {
  return relative_noise(estimate_median({values}));
}

TEST(RelativeNoise, ComparesTheIntervalWithTheMedian) {
  EXPECT_DOUBLE_EQ(noise_of(one_to(10)), (9.0 - 2.0) / 2 / 5.5);
  EXPECT_EQ(noise_of(std::vector<double>(10, 3.0)), 0);
  EXPECT_EQ(noise_of(std::vector<double>(10, 0.0)), 0);
  EXPECT_TRUE(std::isinf(noise_of(std::vector<double>{-3, -2, -1, 0, 1, 2, 3})));
  EXPECT_TRUE(std::isinf(noise_of(std::vector<double>(5, 3.0))));
}

TEST(EstimateRatio, IsTheMedianOfTheRatiosWithItsInterval) {
  // Of 2, 0.3, 5, 2, 2, 2; and not the ratio of the medians.
  expect_interval(ratio_of({2, 3, 40, 4, 3, 20}, {1, 10, 8, 2, 1.5, 10}), 2, 0.3, 5);
  expect_interval(ratio_of(one_to(20), std::vector<double>(20, 2.0)), 5.25, 3, 7.5);
  const std::vector<double> few(5, 1.0);
  EXPECT_EQ(ratio_of(few, few).value, 1);
  EXPECT_EQ(judge(ratio_of(few, few).interval, 0.01), Verdict::kUncertain);
}

TEST(EstimateRatio, HoldsWhatItsTimesMayBeOffTogether) {
  const std::vector<double> under(20, 2.0);
  expect_interval(ratio_of(std::vector<double>(20, 3.0), under, 0.5), 1.5, 3.5 / 2.5, 2.5 / 1.5);
  // Of equal times, all that is off is off in both.
  expect_interval(ratio_of(under, under, 0.5), 1, 1, 1);
}

TEST(EstimateRatio, KnowsTimesOfZeroAndOrdersThoseThatACorrectionLeftBelow) {
  const std::vector<double> zeros(3, 0.0);
  EXPECT_EQ(ratio_of(zeros, zeros).value, 1);
  EXPECT_EQ(ratio_of(zeros, one_to(3)).value, 0);
  EXPECT_TRUE(std::isinf(ratio_of(one_to(3), zeros).value));
  EXPECT_TRUE(std::isinf(ratio_of(one_to(2), {0, 0}).value));
  // Ratios of 1, 2 and infinity: what is beside the median does not spoil it.
  EXPECT_EQ(ratio_of(one_to(3), {1, 1, 0}).value, 2);
  EXPECT_TRUE(std::isinf(ratio_of(one_to(3), {1, 1, 0}).interval.high));
  const std::vector<double> negative(3, -1.0);
  EXPECT_EQ(ratio_of(negative, negative).value, 1);
  EXPECT_TRUE(std::isinf(ratio_of(one_to(3), negative).value));
  EXPECT_EQ(ratio_of(std::vector<double>(3, -2.0), negative).value, 0);
  EXPECT_LT(ratio_of(negative, one_to(3)).value, 0);  // less than any time
}

TEST(EstimateRatio, RefusesWhatHasNoPairs) {
  EXPECT_THROW(ratio_of({}, {}), std::invalid_argument);
  EXPECT_THROW(ratio_of(one_to(3), one_to(2)), std::invalid_argument);
  EXPECT_THROW(ratio_of(one_to(2), one_to(3)), std::invalid_argument);
}

TEST(EstimateMedian, IsThatOfIndependentSamplesWhereNothingElseIsKnown) {
  const Estimate estimate = estimate_median({one_to(10)});
  expect_interval(estimate, 5.5, 2, 9);
  EXPECT_STREQ(to_string(estimate.over), "samples");
  EXPECT_EQ(estimate.count, 10U);
}

TEST(EstimateMedian, CountsAPlaceOnceHoweverOftenItIsSampled) {
  // Ten places that are a unit apart each, sampled a hundred times.
  const Numbers places = in_turn(1000, 10);
  const std::vector<double> seconds(places.begin(), places.end());
  const Estimate estimate = estimate_median({seconds, places});
  EXPECT_STREQ(to_string(estimate.over), "placements");
  EXPECT_EQ(estimate.count, 10U);
  EXPECT_LE(estimate.interval.low, 1);  // the second of ten
  EXPECT_GE(estimate.interval.high, 8);
  EXPECT_GT(estimate_median({seconds}).interval.low, 3);

  const Estimate of_few = estimate_median({one_to(20), in_turn(20, 5)}, in_rows(2, 10));
  EXPECT_STREQ(to_string(of_few.over), "batches");
  EXPECT_EQ(of_few.count, 2U);
}

TEST(EstimateMedian, KnowsThatFewBatchesThatDifferSayLittle) {
  std::vector<double> seconds(60, 1.0);
  std::fill(seconds.begin() + 20, seconds.begin() + 40, 1.01);
  std::fill(seconds.begin() + 40, seconds.end(), 1.02);
  // Student's t with two degrees of freedom, for medians with a standard deviation of 0.01.
  const double half = 4.303 * 0.01 / std::sqrt(3.0);
  const Estimate estimate = estimate_median({seconds}, in_rows(3, 20));
  EXPECT_LE(estimate.interval.low, 1.01 - half + 1e-12);
  EXPECT_GE(estimate.interval.high, 1.01 + half - 1e-12);
}

TEST(EstimateMedian, AndRatiosAreNotBelowZero) {
  std::vector<double> seconds(40, 1.0);
  std::fill(seconds.begin() + 20, seconds.end(), 3.0);
  const Numbers batches = in_rows(2, 20);
  const Interval median = estimate_median({seconds}, batches).interval;
  EXPECT_EQ(median.low, 0);
  EXPECT_GT(median.high, 12);  // Student's t with one degree of freedom
  const std::vector<double> ones(40, 1.0);
  const Interval ratio = estimate_ratio({seconds}, {ones}, batches).interval;
  EXPECT_EQ(ratio.low, 0);
  EXPECT_GT(ratio.high, 12);
  expect_interval(estimate_median({ones}, {}, {.uncertainty_seconds = 2}), 1, 0, 3);
}

TEST(EstimateMedian, TakesWhatIsLeftOfABatchForPartOfItsNeighbour) {
  Random random(5);
  std::vector<double> seconds = drawn(62, [&] { return noisy(random); });
  seconds.front() = 2;
  const Numbers whole = in_rows(5, 20);
  const auto batches = std::span(whole).subspan(19, 62);  // 1, 20, 20, 20 and 1 of them
  const Estimate estimate = estimate_median({seconds}, batches);
  EXPECT_EQ(estimate.count, 3U);
  EXPECT_LT(estimate.interval.high, 1.05);
}

TEST(EstimateMedian, SaysLittleOfARunThatDriftsThroughout) {
  std::vector<double> seconds = one_to(400);
  const Interval drifting = estimate_median({seconds}).interval;
  EXPECT_LT(drifting.low, 80);
  EXPECT_GT(drifting.high, 320);
  EXPECT_LT(drifting.high, kInfinity);
  std::shuffle(seconds.begin(), seconds.end(), Random(1));
  EXPECT_LT(estimate_median({seconds}).interval.high, 240);
}

TEST(EstimateMedian, HasAnIntervalOfFewIndependentSamples) {
  Random random(3);
  for (const std::size_t count : {10UL, 20UL, 39UL, 40UL, 60UL}) {
    int without = 0;
    for (int run = 0; run < 400; ++run) {
      const std::vector<double> seconds = drawn(count, [&] { return random(); });
      without += std::isinf(estimate_median({seconds}, in_rows(count, 1)).interval.high);
    }
    EXPECT_LE(without, 10) << count;
  }
}

TEST(EstimateMedian, RefusesPlacesAndBatchesOfSomeSamples) {
  EXPECT_THROW(estimate_median({one_to(3), in_turn(2, 2)}), std::invalid_argument);
  EXPECT_THROW(estimate_median({one_to(3)}, in_turn(4, 2)), std::invalid_argument);
  EXPECT_THROW(estimate_median({{}}), std::invalid_argument);
}

TEST(Resolution, LeavesOpenWhatEqualSamplesCannotShow) {
  // Of 1000 samples, none showed another tick: fewer than 0.37 % of them would, at 95 %.
  const Resolution resolution{.tick_seconds = 32e-9};
  const std::vector<double> equal(1000, 2.048e-6);
  const Estimate estimate = estimate_median({equal}, {}, resolution);
  const double share = 1 - std::pow(0.025, 1.0 / 1000);
  EXPECT_NEAR(estimate.interval.high - 2.048e-6, share * 32e-9, 1e-12);
  EXPECT_NEAR(2.048e-6 - estimate.interval.low, share * 32e-9, 1e-12);
  const Estimate ratio = estimate_ratio({equal}, {equal}, {}, resolution);
  EXPECT_EQ(ratio.value, 1);
  EXPECT_NEAR(ratio.interval.high, 1 + share * 32 / 2048 * std::sqrt(2.0), 1e-6);
}

TEST(Resolution, IsTheMeansWhereTheTickHidesTheSpread) {
  std::vector<double> ticks(1000, 2.048e-6);
  for (std::size_t i = 0; i < ticks.size(); i += 4) {
    ticks[i] = 2.080e-6;
  }
  ticks[1] = 1;  // as an interrupted call
  const Estimate estimate = estimate_median({ticks}, {}, {.tick_seconds = 32e-9});
  EXPECT_NEAR(estimate.value, 2.056e-6, 0.1e-9);
  // Three in four are at one tick: a standard deviation of 0.433 of it.
  EXPECT_NEAR(estimate.interval.high - estimate.value,
              1.96 * 0.433 * 32e-9 / std::sqrt(1000.0) + 3.69 * 32e-9 / 1000, 0.2e-9);
}

TEST(Resolution, CallsWithoutWorkTakeNoTimeByAnyClock) {
  const Estimate estimate =
      estimate_median({std::vector<double>(10, 0.0)}, {}, {.tick_seconds = 32e-9});
  EXPECT_EQ(estimate.interval.high, 0);
}

TEST(EstimateRatio, CountsThePlacesOfTheCandidateThatHasFewer) {
  const std::vector<double> seconds(120, 1.0);
  const auto count = [&](std::size_t over, std::size_t under) {
    return estimate_ratio({seconds, in_turn(120, over)}, {seconds, in_turn(120, under)}).count;
  };
  EXPECT_EQ(count(30, 30), 30U);
  EXPECT_EQ(count(30, 12), 12U);
  EXPECT_EQ(count(12, 30), 12U);
  EXPECT_EQ(count(6, 60), 6U);  // the fewest that give an interval
  EXPECT_EQ(count(60, 6), 6U);
  EXPECT_EQ(count(5, 60), 60U);
  EXPECT_EQ(count(30, 1), 30U);  // one that stays where it is draws no places
  EXPECT_EQ(count(1, 30), 30U);
}

/// In how many of many runs the interval holds the truth.
double coverage(const std::function<Estimate(Random&)>& run, double truth) {
  constexpr int kRuns = 400;
  Random random(11);
  int covered = 0;
  for (int i = 0; i < kRuns; ++i) {
    const Interval interval = run(random).interval;
    covered += interval.low <= truth && truth <= interval.high;
  }
  return static_cast<double>(covered) / kRuns;
}

void expect_coverage(const std::function<Estimate(Random&)>& run, double truth,
                     const std::string& what) {
  const double covered = coverage(run, truth);
  EXPECT_GE(covered, 0.90) << what;
  EXPECT_LE(covered, 0.9975) << what;
}

TEST(Coverage, OfIndependentSamples) {
  for (const auto& [batches, length] :
       {std::pair{1UL, 10UL}, {3UL, 20UL}, {10UL, 20UL}, {20UL, 64UL}, {300UL, 10UL}}) {
    expect_coverage(
        [&](Random& random) {
          const auto seconds = drawn(batches * length, [&] { return noisy(random); });
          return estimate_median({seconds}, in_rows(batches, length));
        },
        1, std::to_string(batches) + " batches of " + std::to_string(length));
  }
}

TEST(Coverage, OfBatchesThatDiffer) {
  for (const double between : {0.003, 0.01, 0.03}) {
    for (const auto& [batches, length] : {std::pair{2UL, 20UL},
                                          {3UL, 20UL},
                                          {5UL, 40UL},
                                          {8UL, 20UL},
                                          {20UL, 64UL},
                                          {60UL, 20UL}}) {
      expect_coverage(
          [&](Random& random) {
            std::vector<double> seconds;
            for (std::size_t batch = 0; batch < batches; ++batch) {
              const double level = noisy(random, between);
              for (std::size_t i = 0; i < length; ++i) {
                seconds.push_back(level * noisy(random));
              }
            }
            return estimate_median({seconds}, in_rows(batches, length));
          },
          1,
          std::to_string(batches) + " batches of " + std::to_string(length) + ", " +
              std::to_string(between));
    }
  }
}

/// The state of a device that takes after the one before; around 0, with a deviation of 1.
class State {
 public:
  State(double memory, Random& random)
      : memory_(memory), random_(random), state_(normal_(random)) {}
  double next() {
    state_ = memory_ * state_ + std::sqrt(1 - memory_ * memory_) * normal_(random_);
    return state_;
  }

 private:
  double memory_;
  Random& random_;
  std::normal_distribution<double> normal_;
  double state_;
};

/// As long as a state lasts that it does not know of, a run must be much longer.
TEST(Coverage, OfSamplesThatTakeAfterTheOnesBefore) {
  for (const auto& [count, memory] : {std::pair{200UL, 0.8}, {1000UL, 0.95}, {4000UL, 0.98}}) {
    expect_coverage(
        [&](Random& random) {
          State state(memory, random);
          const auto seconds =
              drawn(count, [&] { return std::exp(0.01 * state.next()) * noisy(random, 0.003); });
          return estimate_median({seconds}, in_rows(count / 20, 20));
        },
        1, std::to_string(count) + " samples, memory " + std::to_string(memory));
  }
}

/// A warm-up goes on until a stretch is calm by chance, and that stretch is what is sampled.
TEST(Coverage, OfSamplesThatWereChosenForTheirCalm) {
  for (const double memory : {0.5, 0.8, 0.9}) {
    const auto run = [&](Random& random) {
      State state(memory, random);
      std::vector<double> seconds;
      do {
        for (int i = 0; i < 40; ++i) {
          seconds.push_back(std::exp(0.004 * state.next()) * noisy(random, 0.002));
        }
      } while (seconds.size() < 160 || (seconds.size() < 4000 && !is_steady(seconds)));
      const std::size_t window = steady_window(seconds.size());
      const Numbers batches = in_rows(seconds.size() / 20, 20);
      return estimate_median({std::span(seconds).last(window)}, std::span(batches).last(window));
    };
    expect_coverage(run, 1, "memory " + std::to_string(memory));
  }
}

TEST(Coverage, OfPlacesThatDiffer) {
  for (const auto& [places, count] :
       {std::pair{16UL, 64UL}, {64UL, 64UL}, {64UL, 640UL}, {256UL, 256UL}, {256UL, 1000UL}}) {
    const Numbers place_of = in_turn(count, places);
    expect_coverage(
        [&](Random& random) {
          const auto factors = drawn(places, [&] { return noisy(random, 0.015); });
          std::vector<double> seconds(count);
          for (std::size_t i = 0; i < count; ++i) {
            seconds[i] = factors[place_of[i]] * noisy(random, 0.002);
          }
          return estimate_median({seconds, place_of}, in_rows(count / 8, 8));
        },
        1, std::to_string(count) + " samples at " + std::to_string(places) + " places");
  }
}

/// As a clock shows it that ticks while both ends of a time come at any of its phases.
double ticked(double seconds, Random& random, double tick = 32e-9) {
  const double phase = std::uniform_real_distribution<double>()(random);
  return std::floor(seconds / tick + phase) * tick;
}

TEST(Coverage, OfTimesThatAClockShowsInTicks) {
  for (const double sigma : {0.0, 0.003, 0.01}) {
    for (const double ticks : {60.0, 60.05, 60.12, 60.3, 60.5, 60.71, 60.95}) {
      const double truth = ticks * 32e-9;
      const auto run = [&](Random& random) {
        const auto seconds =
            drawn(640, [&] { return ticked(truth * noisy(random, sigma), random); });
        return estimate_median({seconds}, in_rows(10, 64), {.tick_seconds = 32e-9});
      };
      // Half a tick, where that is all that can be said, holds the truth in any case.
      EXPECT_GE(coverage(run, truth), 0.90) << ticks << " ticks, " << sigma;
    }
  }
}

std::vector<double> ticked_times(double truth, double tick, std::size_t count, Random& random) {
  std::normal_distribution<double> noise(0, 30e-9);
  return drawn(count, [&] { return ticked(truth + noise(random), random, tick); });
}

/// What the mean of so many times, which are right on average, is known to.
TEST(Coverage, OfCoarseClocksIsNoWiderThanTwiceTheIdeal) {
  constexpr std::size_t kSamples = 300;
  for (const double tick : {32e-9, 500e-9, 1024e-9}) {
    for (const double truth : {2.3e-6, 4.6e-6, 6.9e-6, 25.13e-6}) {
      const std::string what = std::to_string(tick * 1e9) + " " + std::to_string(truth * 1e6);
      double width = 0;
      double ideal = 0;
      const auto run = [&](Random& random) {
        const std::vector<double> seconds = ticked_times(truth, tick, kSamples, random);
        const Estimate estimate =
            estimate_median({seconds}, in_rows(5, 60), {.tick_seconds = tick});
        width += estimate.interval.high - estimate.interval.low;
        ideal += 2 * 1.96 * summarize(seconds).stdev / std::sqrt(kSamples);
        return estimate;
      };
      EXPECT_GE(coverage(run, truth), 0.90) << what;
      EXPECT_LE(width, 2 * ideal) << what;
    }
  }
}

TEST(Coverage, OfCoarseClocksNeverCallsASlowerOneTheSame) {
  constexpr std::size_t kSamples = 300;
  Random random(3);
  for (const double tick : {32e-9, 500e-9, 1024e-9}) {
    for (const double truth : {2.3e-6, 4.6e-6, 6.9e-6, 25.13e-6}) {
      int slower = 0;
      for (int run = 0; run < 200; ++run) {
        const std::vector<double> under = ticked_times(truth, tick, kSamples, random);
        const std::vector<double> over = ticked_times(1.03 * truth, tick, kSamples, random);
        const Interval ratio =
            estimate_ratio({over}, {under}, in_rows(5, 60), {.tick_seconds = tick}).interval;
        const Verdict verdict = judge(ratio, 0.01);
        EXPECT_NE(verdict, Verdict::kSame) << tick << " " << truth;
        EXPECT_NE(verdict, Verdict::kFaster) << tick << " " << truth;
        slower += verdict == Verdict::kSlower;
      }
      if (truth > 20 * tick) {
        EXPECT_GE(slower, 180) << tick << " " << truth;
      }
    }
  }
}

TEST(Coverage, OfTicksThatAreRoundedToNanoseconds) {
  Random random(7);
  std::vector<double> seconds(2000);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double off_ns = static_cast<double>(i % 3) - 1;
    seconds[i] = ticked(5.6e-6 * noisy(random, 0.01), random) + 1e-9 * off_ns;
  }
  const Interval sampled = estimate_median({seconds}, {}, {.tick_seconds = 32e-9}).sampled;
  EXPECT_LT(sampled.high - sampled.low, 16e-9);
  EXPECT_GT(sampled.high - sampled.low, 4e-9);  // by chance alone
}

TEST(Coverage, OfRatiosOfPlacesAndTicks) {
  for (const double truth : {1.0, 1.004, 1.02}) {
    for (const auto& [places, count] : {std::pair{64UL, 64UL}, {256UL, 256UL}, {64UL, 300UL}}) {
      const Numbers place_of = in_turn(count, places);
      const auto run = [&](Random& random) {
        const auto factors = drawn(2 * places, [&] { return noisy(random, 0.015); });
        std::vector<double> over(count);
        std::vector<double> under(count);
        for (std::size_t i = 0; i < count; ++i) {
          const double clock = 1 + 0.05 * std::sin(static_cast<double>(i));  // that both share
          over[i] = ticked(truth * 2e-6 * clock * factors[2 * place_of[i]], random);
          under[i] = ticked(2e-6 * clock * factors[2 * place_of[i] + 1], random);
        }
        return estimate_ratio({over, place_of}, {under, place_of}, in_rows(count / 4, 4),
                              {.tick_seconds = 32e-9});
      };
      expect_coverage(run, truth, std::to_string(count) + " rounds at " + std::to_string(places));
    }
  }
}

TEST(Coverage, OfRatiosOfTimesNearTheTick) {
  for (const auto& [over_ticks, under_ticks] :
       {std::pair{60.45, 60.05}, {60.3, 60.3}, {60.9, 60.2}, {61.5, 60.1}}) {
    const auto run = [&](Random& random) {
      const auto over = drawn(320, [&] { return ticked(over_ticks * 32e-9, random); });
      const auto under = drawn(320, [&] { return ticked(under_ticks * 32e-9, random); });
      return estimate_ratio({over}, {under}, in_rows(5, 64), {.tick_seconds = 32e-9});
    };
    EXPECT_GE(coverage(run, over_ticks / under_ticks), 0.90) << over_ticks << " " << under_ticks;
  }
}

TEST(TickOf, FindsTheStepOfAClock) {
  Random random(5);
  for (const double tick : {32e-9, 500e-9, 1000e-9, 1024e-9}) {
    std::vector<double> seconds;
    for (int i = 0; i < 64; ++i) {
      const double truth = std::uniform_real_distribution<double>(1.5e-6, 9e-6)(random);
      const double rounding = static_cast<double>(i % 3 - 1) * 1e-9;  // both ends, to nanoseconds
      seconds.push_back(ticked(truth, random, tick) + rounding);
    }
    EXPECT_NEAR(tick_of(seconds), tick, 0.005 * tick) << tick;
  }
}

TEST(TickOf, IsANanosecondForClocksAsFineAsTheirRounding) {
  Random random(5);
  std::uniform_real_distribution<double> any(1.5e-6, 9e-6);
  EXPECT_LE(tick_of(drawn(64, [&] { return any(random); })), 8e-9);
  EXPECT_EQ(tick_of(std::vector<double>(64, 2e-6)), 1e-9);
  EXPECT_THROW(tick_of({}), std::invalid_argument);
}

TEST(PlacementVarianceShare, SetsPlacesAgainstWhatTheyRepeat) {
  const Numbers places = in_rows(4, 2);
  // All between, all within, and by hand: MSB = 2 * 5/3, MSW = 1/2.
  const std::vector<double> between = {1, 1, 2, 2, 3, 3, 4, 4};
  const std::vector<double> within = {1, 2, 1, 2, 1, 2, 1, 2};
  const std::vector<double> both = {0.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5, 4.5};
  EXPECT_EQ(placement_variance_share({between, places}), 1);
  EXPECT_EQ(placement_variance_share({within, places}), 0);
  const double place_variance = (2 * 5.0 / 3 - 0.5) / 2;
  EXPECT_NEAR(*placement_variance_share({both, places}), place_variance / (place_variance + 0.5),
              1e-12);
  EXPECT_EQ(placement_variance_share({std::vector<double>(8, 1.0), places}), 0);
}

TEST(PlacementVarianceShare, IsNotKnownOfPlacesThatHardlyRepeat) {
  EXPECT_FALSE(placement_variance_share({one_to(6)}).has_value());
  EXPECT_FALSE(placement_variance_share({one_to(6), in_rows(3, 2)}).has_value());
  EXPECT_FALSE(placement_variance_share({one_to(6), in_turn(6, 6)}).has_value());
}

}  // namespace
}  // namespace convtime
