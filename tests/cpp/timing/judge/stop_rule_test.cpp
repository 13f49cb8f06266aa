#include "timing/judge/stop_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "helpers.h"
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

std::vector<double> alternating(std::size_t count, double first, double second) {
  std::vector<double> values(count, first);
  for (std::size_t i = 1; i < count; i += 2) {
    values[i] = second;
  }
  return values;
}

std::vector<double> all(std::size_t count, double value) {
  return std::vector<double>(count, value);
}

const std::vector<double> kNoisy = alternating(10, 1, 9);
const std::vector<double> kQuiet = all(10, 5);

StopRule rule_of(const char* criterion) {
  return {.criterion = enum_from_string<StopCriterion>("stop", criterion)};
}

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
  EXPECT_EQ(StopRule{}.decide(Samples{kQuiet, kQuiet}, 0), StopReason::kSettled);
  EXPECT_EQ(StopRule{}.decide(Samples{kQuiet, kNoisy}, 0), StopReason::kNotYet);
  // A device may have no work of a candidate.
  EXPECT_EQ(StopRule{}.decide(Samples{kQuiet, all(10, 0)}, 0), StopReason::kSettled);
}

TEST(StopRule, AllowsAnIntervalAsWideAsTheTolerance) {
  // Of ten values the interval is from the second to the ninth: 3.5 each way of 5.5.
  EXPECT_EQ(StopRule{.tolerance = 0.637}.decide(Samples{one_to(10)}, 0), StopReason::kSettled);
  EXPECT_EQ(StopRule{.tolerance = 0.636}.decide(Samples{one_to(10)}, 0), StopReason::kNotYet);
}

TEST(StopRule, CanAskForNoNoiseAtAll) {
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = enum_from_string<StopCriterion>("stop", name), .tolerance = 0};
    EXPECT_EQ(rule.decide(Samples{kQuiet}, 0), StopReason::kSettled) << name;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 0), StopReason::kNotYet) << name;
  }
}

TEST(StopRule, HasItsLimitsForEveryCriterion) {
  for (const char* name : {"interval", "noise", "entropy", "verdict", "count", "budget"}) {
    StopRule rule = rule_of(name);
    rule.min_samples = 41;
    EXPECT_EQ(rule.decide(Samples{all(40, 5), all(40, 5)}, kNever), StopReason::kNotYet) << name;
    rule.min_samples = rule.max_samples = 10;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 0), StopReason::kMaxSamples) << name;
    if (rule.criterion == StopCriterion::kCount) {
      continue;
    }
    rule = rule_of(name);
    rule.budget_seconds = 2;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 1.9), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{kNoisy}, 2), StopReason::kBudget) << name;
    EXPECT_EQ(rule.decide(Samples{{}}, 2), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{all(9, 1)}, 2), StopReason::kNotYet) << name;
  }
}

TEST(StopRule, CountTakesItsSamplesHoweverLongAndQuiet) {
  const StopRule rule{.criterion = StopCriterion::kCount, .max_samples = 11};
  EXPECT_EQ(rule.decide(Samples{kQuiet}, kNever), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{all(11, 5)}, 0), StopReason::kMaxSamples);
}

TEST(StopRule, BudgetIsSpentHoweverManyAndQuietTheSamples) {
  const StopRule rule{.criterion = StopCriterion::kBudget,
                      .max_samples = std::numeric_limits<std::size_t>::max()};
  EXPECT_EQ(rule.decide(Samples{kQuiet}, 0.99), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{kQuiet}, 1), StopReason::kBudget);
}

TEST(StopRule, ClaimsNoIntervalOfAFewSamples) {
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = enum_from_string<StopCriterion>("stop", name),
                        .min_samples = 1};
    EXPECT_EQ(rule.decide(Samples{{5}}, 0), StopReason::kNotYet) << name;
    EXPECT_EQ(rule.decide(Samples{{5, 5}}, 0), StopReason::kNotYet) << name;
  }
  EXPECT_EQ(settles_at({.min_samples = 1}, kQuiet), 6U);
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kNoise, .min_samples = 1}, kQuiet), 5U);
}

/// Pairs of events say 5.00 and 5.03 us, of which 3 us are their own.
const std::vector<double> kFast = all(40, 5.00e-6);
const std::vector<double> kSlow = all(40, 5.03e-6);

TEST(StopRule, JudgesTimesLessWhatTheMethodAdds) {
  const auto wide = alternating(40, 5.00e-6, 5.04e-6);  // 0.4 % of 5 us, and 1 % of 2 us
  for (const char* name : {"interval", "noise"}) {
    const StopRule rule{.criterion = enum_from_string<StopCriterion>("stop", name)};
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
  const Samples short_ones{all(40, 0.352e-6), all(40, 0.352e-6)};
  EXPECT_EQ(rule.decide(short_ones, 0, {}, 32e-9), StopReason::kNotYet);  // 3 ns are 0.8 %
  const Samples long_ones{all(40, 50e-6), all(40, 50e-6)};
  EXPECT_EQ(rule.decide(long_ones, 0, {}, 32e-9), StopReason::kSettled);
}

TEST(StopRule, LooksAtTheIntervalsOfResults) {
  // 640 samples of 20 places that are 1 % apart: as many samples would say more.
  std::vector<std::size_t> places(640);
  std::vector<double> seconds(640);
  const std::vector<std::size_t> batches = in_rows(10, 64);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    places[i] = 7 * i % 20;
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
  const CandidateTimes stepping[] = {{steps}};
  const std::vector<std::size_t> halves = in_rows(2, 20);
  EXPECT_EQ(rule.decide({stepping, halves}, 0), StopReason::kNotYet);
}

TEST(StopJudge, LooksAgainWhereThereAreAQuarterMoreSamples) {
  StopJudge judge(StopRule{.min_samples = 10});
  EXPECT_EQ(judge.decide(Samples{kNoisy}, 0), StopReason::kNotYet);
  EXPECT_EQ(judge.decide(Samples{all(12, 5)}, 0), StopReason::kNotYet);
  EXPECT_EQ(judge.decide(Samples{all(12, 5)}, 1), StopReason::kBudget);  // limits are always seen
  EXPECT_EQ(judge.decide(Samples{all(13, 5)}, 0), StopReason::kSettled);

  StopJudge anew(StopRule{.min_samples = 10});
  EXPECT_EQ(anew.decide(Samples{alternating(1000, 1, 9)}, 0), StopReason::kNotYet);
  EXPECT_EQ(anew.decide(Samples{kQuiet}, 0), StopReason::kSettled);  // the others were set aside
}

TEST(StopJudge, JudgesTimesLessWhatIsExpected) {
  StopJudge judge(StopRule{.criterion = StopCriterion::kVerdict});
  judge.expect({2.0e-6, 0.01e-6});
  EXPECT_EQ(judge.decide(Samples{kFast, kSlow}, 0), StopReason::kNotYet);
  judge.expect({3.0e-6, 0.01e-6});
  EXPECT_EQ(judge.decide(Samples{all(60, 5.00e-6), all(60, 5.03e-6)}, 0), StopReason::kSettled);
}

TEST(StopJudge, GoesOnWhileADifferenceIsWithinADoubt) {
  const Samples samples{all(60, 1.00e-3), all(60, 1.02e-3)};
  StopJudge sure(StopRule{.criterion = StopCriterion::kVerdict});
  EXPECT_EQ(sure.decide(samples, 0), StopReason::kSettled);
  StopJudge doubting(StopRule{.criterion = StopCriterion::kVerdict});
  doubting.know_doubt(0.02);
  EXPECT_EQ(doubting.decide(samples, 0), StopReason::kNotYet);
}

// Where every batch of 64 is looked at, the time grows with the square of the number: these take
// more than half a minute, which sanitizers multiply. Otherwise, they take seconds with sanitizers,
// too. Time of the CPU counts, which other processes do not lengthen by taking turns with this one.
constexpr std::size_t kMany = 250'000;
constexpr std::clock_t kHalfAMinute = 30 * CLOCKS_PER_SEC;
TEST(StopJudge, CanKeepUpWithManyRoundsOfTwoAtPlaces) {
  std::vector<double> over = random_bytes(kMany, 256);
  for (double& value : over) {
    value = 101 + value / 256;
  }
  std::vector<double> under(over.rbegin(), over.rend());
  for (double& value : under) {
    value /= 1.01;  // at the margin's edge: nothing is certain
  }
  const std::vector<std::size_t> places = in_turn(over.size(), 4096);
  const std::vector<std::size_t> batches = in_rows(over.size() / 64 + 1, 64);
  constexpr double kTick = 4;
  for (const auto& [name, end] : {std::pair{"interval", StopReason::kMaxSamples},
                                  {"noise", StopReason::kSettled},
                                  {"entropy", StopReason::kSettled},
                                  {"verdict", StopReason::kMaxSamples}}) {
    StopJudge judge(StopRule{.criterion = enum_from_string<StopCriterion>("stop", name),
                             .max_samples = over.size(),
                             .tolerance = 0});
    judge.know_tick(kTick);
    judge.expect({0, 1e-9});
    StopReason reason = StopReason::kNotYet;
    const std::clock_t start = std::clock();
    for (std::size_t count = 64; reason == StopReason::kNotYet; count += 64) {
      count = std::min(count, over.size());
      const auto places_so_far = std::span(places).first(count);
      const CandidateTimes candidates[] = {{std::span(under).first(count), places_so_far},
                                           {std::span(over).first(count), places_so_far}};
      reason = judge.decide({candidates, std::span(batches).first(count)}, 0);
    }
    EXPECT_EQ(reason, end) << name;
    EXPECT_LT(std::clock() - start, kHalfAMinute) << name;
  }
}

// The counts below are from numpy, where nvbench's criteria were written out without updates: each
// prefix's standard deviation and entropy anew, the line by polyfit.

TEST(StopOnNoise, StopsWhenTheNoiseIsSmall) {
  const StopRule rule{.criterion = StopCriterion::kNoise, .tolerance = 0.2};
  const std::vector<double> values = alternating(10, 9, 11);  // 0.105
  EXPECT_EQ(rule.decide(Samples{values, kQuiet}, 0), StopReason::kSettled);
  EXPECT_EQ(rule.decide(Samples{values, kNoisy}, 0), StopReason::kNotYet);
}

TEST(StopOnNoise, StopsWhenTheNoiseStays) {
  std::vector<double> values = random_bytes(200, 256);
  for (double& value : values) {
    value += 100;
  }
  EXPECT_EQ(settles_at(rule_of("noise"), values), 83);
  EXPECT_EQ(settles_at(rule_of("noise"), one_to(100)), 69);  // enough noises to compare
  // It looks at no more than the last noises.
  values = alternating(200, 15, 5);
  values.resize(4000, 10);
  EXPECT_EQ(settles_at({.criterion = StopCriterion::kNoise, .min_samples = 1000}, values), 3250);
}

TEST(StopOnEntropy, StopsWhenTheEntropyHardlyGrows) {
  const StopRule rule = rule_of("entropy");
  EXPECT_EQ(settles_at(rule, one_to(2000)), 1874);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 2)), 788);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 8)), 318);
  EXPECT_EQ(settles_at(rule, random_bytes(1000, 64)), 368);
  std::vector<double> falling = one_to(100);
  falling.resize(500, 0.0);
  EXPECT_EQ(settles_at(rule, falling), 302);
  EXPECT_EQ(settles_at(rule, kQuiet), 10);
  const StopRule late{.criterion = StopCriterion::kEntropy, .min_samples = 777};
  EXPECT_EQ(settles_at(late, all(800, 1.376e-6)), 777);
}

TEST(StopOnEntropy, WaitsForEveryCandidate) {
  const StopRule rule{.criterion = StopCriterion::kEntropy};
  EXPECT_EQ(rule.decide(Samples{kQuiet, one_to(10)}, 0), StopReason::kNotYet);
}

TEST(StopOnVerdict, StopsWhenEveryComparisonIsCertain) {
  const StopRule rule{.criterion = StopCriterion::kVerdict};
  const auto first = all(40, 1);
  const auto close = alternating(40, 1.02, 1);  // the ratio's interval is from 1 to 1.02
  const auto slower = all(40, 1.5);
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
  const auto about_half_more = alternating(40, 1.6, 1.4);
  // 1.4 to 1.6 is not certain to be within 0.5 of 1; the other way round, 0.63 to 0.71 is.
  EXPECT_EQ(rule.decide(Samples{all(40, 1), about_half_more}, 0), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{about_half_more, all(40, 1)}, 0), StopReason::kSettled);
}

TEST(StopOnVerdict, IsNotCertainOfFewRoundsOrOfOneCandidate) {
  const StopRule rule{.criterion = StopCriterion::kVerdict, .max_samples = 100};
  EXPECT_EQ(rule.decide(Samples{all(29, 1), all(29, 1)}, 0), StopReason::kNotYet);
  EXPECT_EQ(rule.decide(Samples{all(30, 1), all(30, 1)}, 0), StopReason::kSettled);
  EXPECT_EQ(rule.decide(Samples{all(99, 1)}, 0), StopReason::kNotYet);
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
  const std::pair<StopRule, const char*> wrong[] = {
      {{.min_samples = 0}, "min_samples must be at least 1, got 0"},
      {{.min_samples = 5, .max_samples = 4}, "max_samples must be at least min_samples (5), got 4"},
      {{.criterion = StopCriterion::kBudget, .min_samples = 5, .max_samples = 4},
       "max_samples must be at least min_samples (5), got 4"},
      {{.budget_seconds = 0}, "budget must be more than 0 seconds, got 0.000000"},
      {{.tolerance = -1}, "tolerance must be 0 or more, got -1.000000"},
      {{.tolerance = kNan}, "tolerance must be 0 or more, got nan"},
      {{.margin = 0}, "margin must be more than 0, got 0.000000"}};
  for (const auto& [rule, said] : wrong) {
    EXPECT_EQ(error_of<std::invalid_argument>([&rule = rule] { rule.validate(); }), said);
  }
  EXPECT_NO_THROW(StopRule{.tolerance = 0}.validate());
}

TEST(StopCriterion, IsKnownByItsName) {
  const char* const names[] = {"interval", "noise", "entropy", "verdict", "count", "budget"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(enum_from_string<StopCriterion>("stop", names[i]), static_cast<StopCriterion>(i));
    EXPECT_STREQ(to_string(static_cast<StopCriterion>(i)), names[i]);
  }
  EXPECT_EQ(
      error_of<std::invalid_argument>([] { enum_from_string<StopCriterion>("stop", "soon"); }),
      "stop must be one of 'interval', 'noise', 'entropy', 'verdict', 'count', 'budget', "
      "got 'soon'");
}

TEST(StopReason, HasANameForResults) {
  EXPECT_STREQ(to_string(StopReason::kNotYet), "not yet");
  EXPECT_STREQ(to_string(StopReason::kSettled), "settled");
  EXPECT_STREQ(to_string(StopReason::kMaxSamples), "max_samples");
  EXPECT_STREQ(to_string(StopReason::kBudget), "budget");
}

}  // namespace
}  // namespace convtime
