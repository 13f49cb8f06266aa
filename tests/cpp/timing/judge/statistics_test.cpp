#include "timing/judge/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "helpers.h"

namespace convtime {
namespace {

TEST(Quantile, InterpolatesAsNumpyDoes) {
  const std::vector<double> values = {10, 2, 7, 4};
  const std::pair<double, double> of_numpy[] = {
      {0, 2}, {0.25, 3.5}, {0.5, 5.5}, {0.9, 9.1}, {1, 10}};
  for (const auto& [probability, expected] : of_numpy) {
    EXPECT_DOUBLE_EQ(quantile(values, probability), expected);
  }
  EXPECT_THROW(quantile({}, 0.5), std::invalid_argument);
  for (const double impossible : {-0.1, 1.1, kNan}) {
    EXPECT_THROW(quantile(one_to(3), impossible), std::invalid_argument);
  }
}

// Ranks from the tables of the sign test's interval (Conover, table A3).
TEST(MedianInterval, HasTheRanksOfTheSignTest) {
  const struct {
    std::size_t count;
    double low, high;
  } of_table[] = {{6, 1, 6}, {10, 2, 9}, {20, 6, 15}, {100, 40, 61}, {1000, 469, 532}};
  for (const auto& [count, low, high] : of_table) {
    const Interval interval = median_interval(one_to(count));
    EXPECT_EQ(interval.low, low) << count;
    EXPECT_EQ(interval.high, high) << count;
  }
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
  // What else may make of a ratio is a doubt about differences, and none about their absence.
  const auto verdict = [](double low, double high, double margin = 0.01, double doubt = 0) {
    return std::string(to_string(judge({low, high}, margin, doubt)));
  };
  EXPECT_EQ(verdict(0.995, 1.005), "same");
  EXPECT_EQ(verdict(0.75, 1.25, 0.25), "same");
  EXPECT_EQ(verdict(0.995, 1.005, 0.01, 0.02), "same");
  EXPECT_EQ(verdict(0.90, 0.98), "faster");
  EXPECT_EQ(verdict(0.90, 0.96, 0.01, 0.02), "faster");
  EXPECT_EQ(verdict(1.02, 1.10), "slower");
  EXPECT_EQ(verdict(1.04, 1.10, 0.01, 0.02), "slower");
  for (const auto& [low, high] : {std::pair{0.98, 1.005}, {0.995, 1.02}, {0.98, 1.02}}) {
    EXPECT_EQ(verdict(low, high), "uncertain") << low;
  }
  EXPECT_EQ(verdict(kNan, kNan), "uncertain");
  EXPECT_EQ(verdict(0.5, 0.75, 0.25), "uncertain");
  EXPECT_EQ(verdict(1.25, 2, 0.25), "uncertain");
  EXPECT_EQ(verdict(0.90, 0.98, 0.01, 0.02), "uncertain");
  EXPECT_EQ(verdict(1.02, 1.10, 0.01, 0.02), "uncertain");
}

}  // namespace
}  // namespace convtime
