#include "timing/judge/stop_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "timing/judge/statistics.h"

namespace convtime {
namespace {

/// Each candidate's.
class Samples {
 public:
  Samples(std::initializer_list<std::vector<double>> candidates) : candidates_(candidates) {
    for (const std::vector<double>& seconds : candidates_) {
      times_.push_back({seconds});
    }
  }
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;

  operator JudgedRounds() const { return {times_}; }

 private:
  std::vector<std::vector<double>> candidates_;
  std::vector<CandidateTimes> times_;
};

constexpr double kNever = std::numeric_limits<double>::infinity();

const std::vector<double> kNoisy = {1, 9, 1, 9, 1, 9, 1, 9, 1, 9};
const std::vector<double> kQuiet(10, 5.0);

/// A generator that is as easily written in numpy: Numerical Recipes' 32-bit one, its high bits.
std::vector<double> random_bytes(std::size_t count, std::uint32_t below) {
  std::uint32_t state = 1;
  std::vector<double> values(count);
  for (double& value : values) {
    state = 1664525 * state + 1013904223;
    value = (state >> 24) % below;
  }
  return values;
}

/// How many of `values` it takes; 0 if they are too few.
std::size_t settles_at(const StopRule& rule, const std::vector<double>& values) {
  for (std::size_t count = 1; count <= values.size(); ++count) {
    const Samples samples = {{values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)}};
    if (rule.decide(samples, 0) == StopReason::kSettled) {
      return count;
    }
  }
  return 0;
}

TEST(StopRule, StopsWhenEveryIntervalIsNarrow) {
  const StopRule rule{.min_samples = 10};
  EXPECT_EQ(rule.decide(Samples{kQuiet, kQuiet}, 0), StopReason::kSettled);
  EXPECT_EQ(rule.decide(Samples{kQuiet, kNoisy}, 0), StopReason::kNotYet);
}

TEST(StopRule, DoesNotWaitForACandidateThatADeviceHasNoWorkOf) {
  EXPECT_EQ(StopRule{}.decide(Samples{kQuiet, std::vector<double>(10, 0.0)}, 0),
            StopReason::kSettled);
}

TEST(StopRule, AllowsAnIntervalAsWideAsTheTolerance) {
  // Of ten values the interval is from the second to the ninth: 3.5 each way of 5.5.
  EXPECT_EQ(StopRule{.tolerance = 0.637}.decide(Samples{one_to(10)}, 0), StopReason::kSettled);
  EXPECT_EQ(StopRule{.tolerance = 0.636}.decide(Samples{one_to(10)}, 0), StopReason::kNotYet);
}

TEST(StopRule, CanAskForNoNoiseAtAll) {
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name), .tolerance = 0};
    EXPECT_EQ(rule.decide(Samples{kQuiet}, 0), StopReason::kSettled) << name;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 0), StopReason::kNotYet) << name;
  }
}

TEST(StopRule, DoesNotTrustTooFewSamples) {
  for (const char* name : {"interval", "noise", "entropy", "verdict", "count", "budget"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name), .min_samples = 41};
    const std::vector<double> same(40, 5.0);
    EXPECT_EQ(rule.decide(Samples{same, same}, kNever), StopReason::kNotYet) << name;
  }
}

TEST(StopRule, StopsAtTheMostSamples) {
  for (const char* name : {"interval", "noise", "entropy", "verdict", "count", "budget"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name), .max_samples = 10};
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 0), StopReason::kMaxSamples) << name;
  }
}

TEST(StopRule, StopsWhenTheBudgetIsSpentButNotBelowTheLeastSamples) {
  for (const char* name : {"interval", "noise", "entropy", "verdict", "budget"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name), .budget_seconds = 2};
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 1.9), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 2), StopReason::kBudget) << name;
    EXPECT_EQ(rule.decide(Samples{{}}, 2), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{std::vector<double>(9, 1.0)}, 2), StopReason::kNotYet) << name;
  }
}

TEST(StopRule, CountTakesItsSamplesHoweverLongAndQuiet) {
  const StopRule rule{.criterion = StopCriterion::kCount, .max_samples = 11};
  EXPECT_EQ(rule.decide(Samples{kQuiet}, kNever), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{std::vector<double>(11, 5.0)}, 0), StopReason::kMaxSamples);
}

TEST(StopRule, BudgetIsSpentHoweverManyAndQuietTheSamples) {
  const StopRule rule{.criterion = StopCriterion::kBudget,
                      .max_samples = std::numeric_limits<std::size_t>::max()};
  EXPECT_EQ(rule.decide(Samples{kQuiet}, 0.99), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{kQuiet}, 1), StopReason::kBudget);
}

TEST(StopRule, ClaimsNoIntervalOfAFewSamples) {
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name), .min_samples = 1};
    EXPECT_EQ(rule.decide(Samples{{5}}, 0), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{{5, 5}}, 0), StopReason::kNotYet) << name;
  }
  EXPECT_EQ(settles_at({.min_samples = 1}, kQuiet), 6U);
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kNoise, .min_samples = 1}, kQuiet), 5U);
}

/// Pairs of events say 5.00 and 5.03 us, of which 3 us are their own.
const std::vector<double> kFast(40, 5.00e-6);
const std::vector<double> kSlow(40, 5.03e-6);

TEST(StopRule, JudgesTimesLessWhatTheMethodAdds) {
  std::vector<double> wide(40, 5.00e-6);
  for (std::size_t i = 0; i < wide.size(); i += 2) {
    wide[i] = 5.04e-6;  // 0.4 % of 5 us, and 1 % of 2 us
  }
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = stop_criterion_from_string(name)};
    EXPECT_EQ(rule.decide(Samples{wide}, 0), StopReason::kSettled) << name;
    EXPECT_EQ(rule.decide(Samples{wide}, 0, {3e-6, 0}), StopReason::kNotYet) << name;
    EXPECT_TRUE(depends_on_overhead(rule.criterion));
  }
  EXPECT_FALSE(depends_on_overhead(StopCriterion::kCount));
}

TEST(StopOnVerdict, JudgesTimesLessWhatTheMethodAdds) {
  // 1.006 as they are, and 1.015 without their own cost: within a margin of 1 %, and beyond it.
  const StopRule rule{.criterion = StopCriterion::kVerdict, .margin = 0.01};
  const Samples samples{kFast, kSlow};
  EXPECT_EQ(rule.decide(samples, 0, {3.0e-6, 0.01e-6}), StopReason::kSettled);
  // With 2 us it is 1.01: neither one nor the other.
  EXPECT_EQ(rule.decide(samples, 0, {2.0e-6, 0.01e-6}), StopReason::kNotYet);
  // Not known well enough to tell: from 1.0086 to 1.06.
  EXPECT_EQ(rule.decide(samples, 0, {3.0e-6, 1.5e-6}), StopReason::kNotYet);
}

TEST(StopOnVerdict, KnowsTheClocksTick) {
  const StopRule rule{.criterion = StopCriterion::kVerdict};
  const Samples short_ones{std::vector<double>(40, 0.352e-6), std::vector<double>(40, 0.352e-6)};
  EXPECT_EQ(rule.decide(short_ones, 0, {}, 32e-9), StopReason::kNotYet);  // 3 ns are 0.8 %
  const Samples long_ones{std::vector<double>(40, 50e-6), std::vector<double>(40, 50e-6)};
  EXPECT_EQ(rule.decide(long_ones, 0, {}, 32e-9), StopReason::kSettled);
}

TEST(StopRule, LooksAtTheIntervalsOfResults) {
  // 640 samples of 20 places that are 1 % apart: as many samples would say more.
  std::vector<std::size_t> places(640);
  std::vector<std::size_t> batches(640);
  std::vector<double> seconds(640);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    places[i] = 7 * i % 20;
    batches[i] = i / 64;
    seconds[i] = 1 + 0.01 * static_cast<double>(places[i]);
  }
  const StopRule rule{.tolerance = 0.02};
  const CandidateTimes anywhere[] = {{seconds}};
  EXPECT_EQ(rule.decide({anywhere, batches}, 0), StopReason::kSettled);
  const CandidateTimes placed[] = {{seconds, places}};
  EXPECT_EQ(rule.decide({placed, batches}, 0), StopReason::kNotYet);
  // Two batches that differ by 1 % are no proof that the next ones do not differ by more.
  std::vector<double> steps(40, 1.0);
  std::fill(steps.begin() + 20, steps.end(), 1.01);
  const std::vector<std::size_t> halves = [] {
    std::vector<std::size_t> numbers(40, 0);
    std::fill(numbers.begin() + 20, numbers.end(), 1);
    return numbers;
  }();
  const CandidateTimes stepping[] = {{steps}};
  EXPECT_EQ(rule.decide({stepping, halves}, 0), StopReason::kNotYet);
}

TEST(StopJudge, LooksAgainWhereThereAreAQuarterMoreSamples) {
  StopJudge judge(StopRule{.min_samples = 10});
  EXPECT_EQ(judge.decide(Samples{kNoisy}, 0), StopReason::kNotYet);
  const auto quiet = [](std::size_t count) { return std::vector<double>(count, 5.0); };
  EXPECT_EQ(judge.decide(Samples{quiet(12)}, 0), StopReason::kNotYet);
  EXPECT_EQ(judge.decide(Samples{quiet(12)}, 1), StopReason::kBudget);  // limits are always seen
  EXPECT_EQ(judge.decide(Samples{quiet(13)}, 0), StopReason::kSettled);
}

TEST(StopJudge, StartsAnewWhereSamplesWereSetAside) {
  StopJudge judge(StopRule{.min_samples = 10});
  std::vector<double> noisy;
  for (std::size_t i = 0; i < 1000; ++i) {
    noisy.push_back(kNoisy[i % 10]);
  }
  EXPECT_EQ(judge.decide(Samples{noisy}, 0), StopReason::kNotYet);
  EXPECT_EQ(judge.decide(Samples{kQuiet}, 0), StopReason::kSettled);
}

TEST(StopJudge, JudgesTimesLessWhatIsExpected) {
  StopJudge judge(StopRule{.criterion = StopCriterion::kVerdict});
  judge.expect({2.0e-6, 0.01e-6});
  EXPECT_EQ(judge.decide(Samples{kFast, kSlow}, 0), StopReason::kNotYet);
  judge.expect({3.0e-6, 0.01e-6});
  std::vector<double> fast(60, 5.00e-6);
  std::vector<double> slow(60, 5.03e-6);
  EXPECT_EQ(judge.decide(Samples{fast, slow}, 0), StopReason::kSettled);
}

TEST(StopJudge, GoesOnWhileADifferenceIsWithinADoubt) {
  const std::vector<double> first(60, 1.00e-3);
  const std::vector<double> slower(60, 1.02e-3);
  StopJudge sure(StopRule{.criterion = StopCriterion::kVerdict});
  EXPECT_EQ(sure.decide(Samples{first, slower}, 0), StopReason::kSettled);
  StopJudge doubting(StopRule{.criterion = StopCriterion::kVerdict});
  doubting.know_doubt(0.02);
  EXPECT_EQ(doubting.decide(Samples{first, slower}, 0), StopReason::kNotYet);
}

// Where every batch of 64 is looked at, the time grows with the square of the number: these take
// more than half a minute, which sanitizers multiply. Otherwise, they take seconds with sanitizers,
// too.
constexpr std::size_t kMany = 250'000;
constexpr std::chrono::seconds kHalfAMinute{30};
TEST(StopJudge, CanKeepUpWithManySamples) {
  const std::vector<double> values = random_bytes(kMany, 256);
  for (const char* name : {"interval", "noise", "entropy", "verdict"}) {
    StopJudge judge(StopRule{.criterion = stop_criterion_from_string(name),
                             .min_samples = 10,
                             .max_samples = values.size(),
                             .tolerance = 0});
    StopReason reason = StopReason::kNotYet;
    std::size_t count = 0;
    const auto start = std::chrono::steady_clock::now();
    while (reason == StopReason::kNotYet) {
      count = std::min(count + 64, values.size());
      const CandidateTimes samples[] = {{std::span(values).first(count)}};
      reason = judge.decide({samples}, 0);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kHalfAMinute) << name;
  }
}

TEST(StopJudge, CanKeepUpWithManyRoundsOfTwoAtPlaces) {
  std::vector<double> over = random_bytes(kMany, 256);
  for (double& value : over) {
    value = 101 + value / 256;
  }
  std::vector<double> under(over.rbegin(), over.rend());
  for (double& value : under) {
    value /= 1.01;  // at the margin's edge: nothing is certain
  }
  std::vector<std::size_t> places(over.size());
  std::vector<std::size_t> batches(over.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = i % 4096;
    batches[i] = i / 64;
  }
  constexpr double kTick = 4;
  for (const char* name : {"interval", "verdict"}) {
    StopJudge judge(StopRule{
        .criterion = stop_criterion_from_string(name), .max_samples = over.size(), .tolerance = 0});
    judge.know_tick(kTick);
    judge.expect({0, 1e-9});
    StopReason reason = StopReason::kNotYet;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t count = 64; reason == StopReason::kNotYet; count += 64) {
      count = std::min(count, over.size());
      const auto places_so_far = std::span(places).first(count);
      const CandidateTimes candidates[] = {{std::span(under).first(count), places_so_far},
                                           {std::span(over).first(count), places_so_far}};
      reason = judge.decide({candidates, std::span(batches).first(count)}, 0);
    }
    EXPECT_EQ(reason, StopReason::kMaxSamples) << name;
    EXPECT_LT(std::chrono::steady_clock::now() - start, kHalfAMinute) << name;
  }
}

// The counts below are from numpy, where nvbench's criteria were written out without updates: each
// prefix's standard deviation and entropy anew, the line by polyfit.

TEST(StopOnNoise, StopsWhenTheNoiseIsSmall) {
  const StopRule rule{.criterion = StopCriterion::kNoise, .tolerance = 0.2};
  const std::vector<double> values = {9, 11, 9, 11, 9, 11, 9, 11, 9, 11};  // 0.105
  EXPECT_EQ(rule.decide(Samples{values, kQuiet}, 0), StopReason::kSettled);
  EXPECT_EQ(rule.decide(Samples{values, kNoisy}, 0), StopReason::kNotYet);
}

TEST(StopOnNoise, StopsWhenTheNoiseStays) {
  const StopRule rule{.criterion = StopCriterion::kNoise};
  std::vector<double> values = random_bytes(200, 256);
  for (double& value : values) {
    value += 100;
  }
  EXPECT_EQ(settles_at(rule, values), 83);
}

TEST(StopOnNoise, LooksAtNoMoreThanTheLastNoises) {
  std::vector<double> values(4000, 10.0);
  for (std::size_t i = 0; i < 200; ++i) {
    values[i] = i % 2 == 0 ? 15 : 5;
  }
  const StopRule rule{.criterion = StopCriterion::kNoise, .min_samples = 1000};
  EXPECT_EQ(settles_at(rule, values), 3250);
}

TEST(StopOnNoise, TakesEnoughNoisesToCompare) {
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kNoise}, one_to(100)), 69);
}

TEST(StopOnEntropy, StopsWhenTheEntropyHardlyGrows) {
  const StopRule rule{.criterion = StopCriterion::kEntropy};
  EXPECT_EQ(settles_at(rule, one_to(2000)), 1874);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 2)), 788);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 8)), 318);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 64)), 368);
}

TEST(StopOnEntropy, TakesAFallForNoGrowth) {
  std::vector<double> values = one_to(100);
  values.resize(500, 0.0);
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kEntropy}, values), 302);
}

TEST(StopOnEntropy, StopsAtOnceWhereThereIsNothingButOneValue) {
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kEntropy}, kQuiet), 10);
  const StopRule late{.criterion = StopCriterion::kEntropy, .min_samples = 777};
  EXPECT_EQ(settles_at(late, std::vector<double>(800, 1.376e-6)), 777);
}

TEST(StopOnEntropy, WaitsForEveryCandidate) {
  const StopRule rule{.criterion = StopCriterion::kEntropy};
  EXPECT_EQ(rule.decide(Samples{kQuiet, one_to(10)}, 0), StopReason::kNotYet);
}

TEST(StopOnVerdict, StopsWhenEveryComparisonIsCertain) {
  const StopRule rule{.criterion = StopCriterion::kVerdict};
  const std::vector<double> first(40, 1.0);
  std::vector<double> close(40, 1.0);
  for (std::size_t i = 0; i < close.size(); i += 2) {
    close[i] = 1.02;  // the ratio's interval is from 1 to 1.02
  }
  const std::vector<double> slower(40, 1.5);
  EXPECT_EQ(rule.decide(Samples{first, first, slower}, 0), StopReason::kSettled);
  EXPECT_EQ(rule.decide(Samples{first, slower, close}, 0), StopReason::kNotYet);
  const StopRule lenient{.criterion = StopCriterion::kVerdict, .margin = 0.03};
  EXPECT_EQ(lenient.decide(Samples{first, slower, close}, 0), StopReason::kSettled);
}

TEST(StopOnVerdict, ComparesWithinTheRounds) {
  const StopRule rule{.criterion = StopCriterion::kVerdict};
  std::vector<double> twice = one_to(40);
  for (double& value : twice) {
    value *= 2;
  }
  EXPECT_EQ(rule.decide(Samples{one_to(40), twice}, 0), StopReason::kSettled);
}

TEST(StopOnVerdict, ComparesTheOthersWithTheFirst) {
  const StopRule rule{.criterion = StopCriterion::kVerdict, .margin = 0.5};
  const std::vector<double> one(40, 1.0);
  std::vector<double> about_half_more(40, 1.4);
  for (std::size_t i = 0; i < about_half_more.size(); i += 2) {
    about_half_more[i] = 1.6;
  }
  // 1.4 to 1.6 is not certain to be within 0.5 of 1; the other way round, 0.63 to 0.71 is.
  EXPECT_EQ(rule.decide(Samples{one, about_half_more}, 0), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{about_half_more, one}, 0), StopReason::kSettled);
}

TEST(StopOnVerdict, IsNotCertainOfFewRounds) {
  const StopRule rule{.criterion = StopCriterion::kVerdict};
  const auto decide = [&](std::size_t rounds) {
    const std::vector<double> same(rounds, 1.0);
    return rule.decide(Samples{same, same}, 0);
  };
  EXPECT_EQ(decide(29), StopReason::kNotYet);
  EXPECT_EQ(decide(30), StopReason::kSettled);
}

TEST(StopOnVerdict, HasNoneOfOneCandidate) {
  const StopRule rule{.criterion = StopCriterion::kVerdict, .max_samples = 100};
  EXPECT_EQ(rule.decide(Samples{std::vector<double>(99, 1.0)}, 0), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{std::vector<double>(100, 1.0)}, 0), StopReason::kMaxSamples);
}

/// Two candidates whose times differ by place, as relu's on an H200, and share a drifting clock.
class PlacedPair {
 public:
  PlacedPair(double ratio, std::mt19937& random) {
    constexpr std::size_t kPlaces = 256;
    constexpr std::size_t kBatch = 64;
    std::normal_distribution<double> normal;
    std::vector<double> factors(2 * kPlaces);
    for (double& factor : factors) {
      factor = std::exp(0.015 * normal(random));
    }
    for (std::size_t i = 0; i < kRounds; ++i) {
      const double clock = 1 + 0.01 * std::sin(static_cast<double>(i) / 300);
      places_.push_back(i % kPlaces);
      batches_.push_back(i / kBatch);
      for (std::size_t candidate = 0; candidate < 2; ++candidate) {
        const double truth = 10e-6 * clock * (candidate == 0 ? 1 : ratio);
        seconds_[candidate].push_back(truth * factors[candidate * kPlaces + places_.back()] *
                                      std::exp(0.003 * normal(random)));
      }
    }
  }

  /// That sampling ends with, batch by batch.
  Verdict verdict() const {
    StopJudge judge_of_run(StopRule{.criterion = StopCriterion::kVerdict});
    judge_of_run.know_tick(32e-9);
    for (std::size_t count = 64; count <= kRounds; count += 64) {
      const CandidateTimes candidates[] = {first(count, 0), first(count, 1)};
      const auto batches = std::span(batches_).first(count);
      if (judge_of_run.decide({candidates, batches}, 0) == StopReason::kSettled) {
        return judge(estimate_ratio(candidates[1], candidates[0], batches, {32e-9}).interval, 0.01);
      }
    }
    return Verdict::kUncertain;
  }

 private:
  static constexpr std::size_t kRounds = 2048;

  CandidateTimes first(std::size_t count, std::size_t candidate) const {
    return {std::span(seconds_[candidate]).first(count), std::span(places_).first(count)};
  }

  std::vector<double> seconds_[2];
  std::vector<std::size_t> places_;
  std::vector<std::size_t> batches_;
};

TEST(StopOnVerdict, IsRightThoughItLooksAgainAndAgain) {
  constexpr int kRuns = 200;
  std::mt19937 random(4);
  for (const auto& [ratio, truth] : {std::pair{1.0, Verdict::kSame}, {1.02, Verdict::kSlower}}) {
    int right = 0;
    int uncertain = 0;
    for (int run = 0; run < kRuns; ++run) {
      const Verdict verdict = PlacedPair(ratio, random).verdict();
      right += verdict == truth;
      uncertain += verdict == Verdict::kUncertain;
    }
    EXPECT_GE(right, 0.95 * kRuns) << ratio;
    EXPECT_LE(kRuns - right - uncertain, 0.01 * kRuns) << ratio;
  }
}

TEST(StopRule, RefusesRulesThatCannotBeMet) {
  const auto message = [](const StopRule& rule) -> std::string {
    try {
      rule.validate();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message({.min_samples = 0}), "min_samples must be at least 1, got 0");
  EXPECT_EQ(message({.min_samples = 5, .max_samples = 4}),
            "max_samples must be at least min_samples (5), got 4");
  EXPECT_EQ(message({.budget_seconds = 0}), "budget must be more than 0 seconds, got 0.000000");
  EXPECT_EQ(message({.tolerance = -1}), "tolerance must be 0 or more, got -1.000000");
  EXPECT_EQ(message({.tolerance = nan}), "tolerance must be 0 or more, got nan");
  EXPECT_EQ(message({.margin = 0}), "margin must be more than 0, got 0.000000");
  EXPECT_EQ(message({.tolerance = 0}), "");
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.criterion = StopCriterion::kBudget, .min_samples = 5, .max_samples = 4}),
            "max_samples must be at least min_samples (5), got 4");
}

TEST(StopCriterion, IsKnownByItsName) {
  EXPECT_EQ(stop_criterion_from_string("interval"), StopCriterion::kInterval);
  EXPECT_EQ(stop_criterion_from_string("noise"), StopCriterion::kNoise);
  EXPECT_EQ(stop_criterion_from_string("entropy"), StopCriterion::kEntropy);
  EXPECT_EQ(stop_criterion_from_string("verdict"), StopCriterion::kVerdict);
  EXPECT_EQ(stop_criterion_from_string("count"), StopCriterion::kCount);
  EXPECT_EQ(stop_criterion_from_string("budget"), StopCriterion::kBudget);
  EXPECT_STREQ(to_string(StopCriterion::kVerdict), "verdict");
  try {
    stop_criterion_from_string("soon");
    FAIL() << "took a name that no criterion has";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "stop must be one of 'interval', 'noise', 'entropy', 'verdict', 'count', "
                 "'budget', got 'soon'");
  }
}

TEST(StopReason, HasANameForResults) {
  EXPECT_STREQ(to_string(StopReason::kNotYet), "not yet");
  EXPECT_STREQ(to_string(StopReason::kSettled), "settled");
  EXPECT_STREQ(to_string(StopReason::kMaxSamples), "max_samples");
  EXPECT_STREQ(to_string(StopReason::kBudget), "budget");
}

}  // namespace
}  // namespace convtime
