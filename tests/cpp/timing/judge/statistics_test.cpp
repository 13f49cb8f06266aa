#include "timing/judge/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "numbers.h"
#include "timing/judge/order_statistics.h"

namespace convtime {
namespace {

TEST(Quantile, InterpolatesAsNumpyDoes) {
  const std::vector<double> values = {10, 2, 7, 4};  // numpy.quantile of it
  EXPECT_DOUBLE_EQ(quantile(values, 0), 2);
  EXPECT_DOUBLE_EQ(quantile(values, 0.25), 3.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 5.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 9.1);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 10);
}

TEST(Quantile, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(quantile({}, 0.5), std::invalid_argument);
  EXPECT_THROW(quantile(one_to(3), -0.1), std::invalid_argument);
  EXPECT_THROW(quantile(one_to(3), 1.1), std::invalid_argument);
  EXPECT_THROW(quantile(one_to(3), std::nan("")), std::invalid_argument);
}

// Ranks from the tables of the sign test's interval (Conover, table A3).
TEST(MedianInterval, HasTheRanksOfTheSignTest) {
  const auto expect_ranks = [](std::size_t count, double low, double high) {
    const Interval interval = median_interval(one_to(count));
    EXPECT_EQ(interval.low, low) << count;
    EXPECT_EQ(interval.high, high) << count;
  };
  expect_ranks(6, 1, 6);
  expect_ranks(10, 2, 9);
  expect_ranks(20, 6, 15);
  expect_ranks(100, 40, 61);
  expect_ranks(1000, 469, 532);
}

TEST(MedianInterval, HasNoBoundsForTooFewValues) {
  // Five values all lie on the same side of the median in one of 16 cases.
  for (std::size_t count = 1; count < kMinIntervalValues; ++count) {
    const Interval interval = median_interval(one_to(count));
    EXPECT_EQ(interval.low, -kInfinity) << count;
    EXPECT_EQ(interval.high, kInfinity) << count;
  }
  EXPECT_TRUE(std::isfinite(median_interval(one_to(kMinIntervalValues)).high));
}

TEST(MedianInterval, CoversTheTrueMedianAsOftenAsItSays) {
  std::mt19937 random(7);
  std::exponential_distribution<double> skewed;
  for (const std::size_t count : {10UL, 37UL, 200UL}) {
    int covered = 0;
    constexpr int kTrials = 4000;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> values(count);
      for (double& value : values) {
        value = skewed(random);
      }
      const Interval interval = median_interval(values);
      covered += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high;
    }
    // Order statistics come in steps: with ten values the interval holds 97.9 %.
    EXPECT_GE(covered, 0.94 * kTrials) << count;
    EXPECT_LE(covered, 0.985 * kTrials) << count;
  }
}

TEST(Summary, DescribesTheSamples) {
  const Summary summary = summarize(std::vector<double>{4, 1, 3, 2});
  EXPECT_EQ(summary.count, 4U);
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.stdev, std::sqrt(5.0 / 3.0));
  EXPECT_DOUBLE_EQ(summary.min, 1);
  EXPECT_DOUBLE_EQ(summary.max, 4);
  EXPECT_DOUBLE_EQ(summary.median, 2.5);
  EXPECT_DOUBLE_EQ(summary.iqr, 1.5);
  EXPECT_EQ(summarize(std::vector<double>{4}).stdev, 0);
  EXPECT_THROW(summarize({}), std::invalid_argument);
}

// Python's statistics.median_grouped of the same values, with the tick as its interval.
TEST(Median, LiesWithinTheTickOfTimesThatAClockMakesEqual) {
  std::vector<double> values(3, 1.312e-6);
  values.insert(values.end(), 60, 1.344e-6);
  values.insert(values.end(), 37, 1.376e-6);
  EXPECT_NEAR(median(values), 1.353066667e-6, 1e-15);
  EXPECT_NEAR(summarize(values).median, 1.353066667e-6, 1e-15);
  const Interval interval = median_interval(values);
  EXPECT_NEAR(interval.low, 1.328e-6 + 32e-9 * 36.5 / 60, 1e-15);   // the 40th of 100
  EXPECT_NEAR(interval.high, 1.328e-6 + 32e-9 * 57.5 / 60, 1e-15);  // the 61st
}

TEST(Median, TakesTimesThatDifferByRoundingForEqual) {
  const std::vector<double> values = {1.343e-6, 1.344e-6, 1.345e-6, 1.376e-6};
  EXPECT_NEAR(median(values), 1.344e-6 + 31e-9 / 6, 1e-15);
}

TEST(Median, IsTheUsualOneOfTimesThatAllDiffer) {
  EXPECT_DOUBLE_EQ(median(std::vector<double>{4e-6, 1e-6, 3e-6, 2e-6}), 2.5e-6);
  std::vector<double> every_nanosecond(101);
  for (std::size_t i = 0; i < every_nanosecond.size(); ++i) {
    every_nanosecond[i] = static_cast<double>(50 + i / 2) * 1e-9;
  }
  EXPECT_DOUBLE_EQ(median(every_nanosecond), 75e-9);
  EXPECT_EQ(median(std::vector<double>(10, 3.0)), 3);
}

TEST(RelativeStdev, ComparesTheStandardDeviationWithTheMean) {
  EXPECT_DOUBLE_EQ(relative_stdev(std::vector<double>{4, 1, 3, 2}), std::sqrt(5.0 / 3.0) / 2.5);
  EXPECT_EQ(relative_stdev(std::vector<double>{4}), 0);
  EXPECT_TRUE(std::isinf(relative_stdev(std::vector<double>{0, 0})));
  EXPECT_TRUE(std::isinf(relative_stdev(std::vector<double>{1, -3})));
  EXPECT_THROW(relative_stdev({}), std::invalid_argument);
}

TEST(Judge, WantsTheWholeIntervalOnOneSide) {
  EXPECT_EQ(judge({0.995, 1.005}, 0.01), Verdict::kSame);
  EXPECT_EQ(judge({0.75, 1.25}, 0.25), Verdict::kSame);
  EXPECT_EQ(judge({0.90, 0.98}, 0.01), Verdict::kFaster);
  EXPECT_EQ(judge({1.02, 1.10}, 0.01), Verdict::kSlower);
  EXPECT_EQ(judge({0.98, 1.005}, 0.01), Verdict::kUncertain);
  EXPECT_EQ(judge({0.995, 1.02}, 0.01), Verdict::kUncertain);
  EXPECT_EQ(judge({0.98, 1.02}, 0.01), Verdict::kUncertain);
  EXPECT_EQ(judge({0.5, 0.75}, 0.25), Verdict::kUncertain);
  EXPECT_EQ(judge({1.25, 2}, 0.25), Verdict::kUncertain);
  EXPECT_EQ(judge({std::nan(""), std::nan("")}, 0.01), Verdict::kUncertain);
  // What else may make of a ratio is a doubt about differences, and none about their absence.
  EXPECT_EQ(judge({0.995, 1.005}, 0.01, 0.02), Verdict::kSame);
  EXPECT_EQ(judge({0.90, 0.98}, 0.01, 0.02), Verdict::kUncertain);
  EXPECT_EQ(judge({1.02, 1.10}, 0.01, 0.02), Verdict::kUncertain);
  EXPECT_EQ(judge({0.90, 0.96}, 0.01, 0.02), Verdict::kFaster);
  EXPECT_EQ(judge({1.04, 1.10}, 0.01, 0.02), Verdict::kSlower);
}

TEST(Judge, HasANameForEachVerdict) {
  EXPECT_STREQ(to_string(Verdict::kSame), "same");
  EXPECT_STREQ(to_string(Verdict::kFaster), "faster");
  EXPECT_STREQ(to_string(Verdict::kSlower), "slower");
  EXPECT_STREQ(to_string(Verdict::kUncertain), "uncertain");
}

}  // namespace
}  // namespace convtime
