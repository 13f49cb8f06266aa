#include "timing/judge/steadiness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "helpers.h"

namespace convtime {
namespace {

std::vector<double> series(std::size_t count, const std::function<double(std::size_t)>& value) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = value(i);
  }
  return values;
}

/// How many of `seeds` noises leave the series steady.
int steady_seeds(int seeds, std::size_t count,
                 const std::function<double(std::size_t, std::mt19937&)>& value) {
  int steady = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    steady += is_steady(series(count, [&](std::size_t i) { return value(i, random); }));
  }
  return steady;
}

double gaussian(std::mt19937& random) { return std::normal_distribution<double>()(random); }

bool chance(double probability, std::mt19937& random) {
  return std::bernoulli_distribution(probability)(random);
}

TEST(Steadiness, NeedsEnoughValues) {
  EXPECT_FALSE(is_steady({}));
  EXPECT_FALSE(is_steady(std::vector<double>(19, 1.0)));
  for (const double value : {0.0, 1.0, 3.0}) {
    EXPECT_TRUE(is_steady(std::vector<double>(20, value)));
    EXPECT_TRUE(is_steady(std::vector<double>(1000, value)));
  }
}

TEST(Steadiness, HoldsForAClockThatTicksInSteps) {
  for (const std::size_t count : {20UL, 41UL, 50UL, 100UL, 999UL}) {
    EXPECT_TRUE(is_steady(series(count, [](std::size_t i) {
      return i % 2 == 0 ? 1.376e-6 : 1.408e-6;
    }))) << count;
  }
}

TEST(Steadiness, SkipsWhatIsUnknown) {
  EXPECT_TRUE(is_steady(series(40, [](std::size_t i) { return i % 2 == 0 ? kNan : 1.0; })));
  EXPECT_FALSE(is_steady(series(38, [](std::size_t i) { return i % 2 == 0 ? kNan : 1.0; })));
  EXPECT_FALSE(is_steady(series(
      200, [](std::size_t i) { return i % 2 == 0 ? kNan : 1 + 1e-3 * static_cast<double>(i); })));
  EXPECT_FALSE(is_steady(std::vector<double>(19, kNan)));
  EXPECT_TRUE(is_steady(std::vector<double>(20, kNan)));
}

TEST(Steadiness, ComesWhenADecayHasReachedItsPlateau) {
  constexpr double kTau = 60;
  const auto value = [](std::size_t i) {
    return 1 + 0.2 * std::exp(-static_cast<double>(i) / kTau);
  };
  int steady = 0;
  int drifting = 0;
  for (std::size_t count = 40; count <= 800; ++count) {
    const double drift = value(count / 2) - value(count);
    if (drift < 0.005) {
      EXPECT_TRUE(is_steady(series(count, value))) << count;
      ++steady;
    } else if (drift > 0.0075 || count < 200) {
      // In between, the two ends of the window differ by more than what most of it does.
      EXPECT_FALSE(is_steady(series(count, value))) << count;
      ++drifting;
    }
  }
  EXPECT_GT(steady, 100);
  EXPECT_GT(drifting, 100);
}

TEST(Steadiness, IsLostInAStep) {
  for (const std::size_t where : {140UL, 150UL, 160UL, 170UL, 175UL}) {
    for (const double to : {0.98, 1.02}) {
      EXPECT_FALSE(is_steady(series(200, [&](std::size_t i) { return i < where ? 1 : to; })))
          << where << " to " << to;
    }
    EXPECT_LE(steady_seeds(50, 200,
                           [&](std::size_t i, std::mt19937& random) {
                             return (i < where ? 1 : 1.02) + 0.005 * gaussian(random);
                           }),
              2)
        << where;
  }
}

TEST(Steadiness, IsLostInAStepThatTrendsHideOrBetweenTies) {
  // Each half falls by 2 %, which makes up for the step of 4 % between them: Kendall's S is small.
  EXPECT_FALSE(is_steady(series(200, [](std::size_t i) {
    return 1 + (i < 150 ? 0 : 0.04) - 0.02 * (static_cast<double>(i) - 100) / 50;
  })));
  // S is 51. Its deviation is 18.9 with the ties of 17 and of 3 values, and 30.8 were there none.
  EXPECT_FALSE(is_steady(series(20, [](std::size_t i) { return i < 17 ? 1 : 1.02; })));
  EXPECT_TRUE(is_steady(series(200, [](std::size_t i) { return i < 100 ? 5.0 : 1.0; })));  // past
}

TEST(Steadiness, HoldsUpToItsLimits) {
  // Without ties, S of 20 values is significant from 1.96 * sqrt(950) + 1 on: from 62, not at 60.
  for (const int sign : {-1, 1}) {
    for (const std::size_t modulus : {50UL, 46UL}) {  // of which the values' S is 62 and 60
      EXPECT_EQ(is_steady(series(20,
                                 [&](std::size_t i) {
                                   return 1000 + sign * static_cast<double>(i + 20 * i % modulus);
                                 })),
                modulus == 46)
          << sign << " " << modulus;
    }
    // Of numbers without rounding: over 20 values, the drift is exactly 0.5 % of 250.
    for (const double median : {250.0, 249.0}) {
      const auto drift = [&](std::size_t i) {
        return median + sign * (static_cast<double>(i) - 9.5) / 16;
      };
      EXPECT_EQ(is_steady(series(20, drift)), median == 250) << sign;
    }
  }
}

TEST(Steadiness, IsLostInALinearDriftBeyondItsTolerance) {
  for (const double drift : {-0.02, 0.02, 0.004}) {
    const auto value = [&](std::size_t i) { return 1 + drift * static_cast<double>(i) / 100; };
    EXPECT_EQ(is_steady(series(200, value)), drift == 0.004) << drift;
  }
  EXPECT_FALSE(is_steady(
      series(5000, [](std::size_t i) { return 1 + 0.02 * static_cast<double>(i) / 100; })));
}

TEST(Steadiness, IsNotFooledByNoise) {
  const auto value = [](std::size_t, std::mt19937& random) { return 1 + 0.02 * gaussian(random); };
  for (const std::size_t count : {20UL, 100UL, 200UL}) {  // the window is of 100 at most
    EXPECT_GE(steady_seeds(200, count, value), 180) << count;
  }
  EXPECT_GE(steady_seeds(200, 200,
                         [](std::size_t, std::mt19937& random) {
                           return (chance(0.5, random) ? 1 : 1.1) + 0.002 * gaussian(random);
                         }),
            180);
}

TEST(Steadiness, SeesADriftThroughNoiseAndOutliers) {
  for (const double outliers : {0.0, 0.05}) {
    const auto noise = [&](std::mt19937& random) {
      return (chance(outliers, random) ? 10.0 : 1.0) * (1 + 0.005 * gaussian(random));
    };
    const auto still = [&](std::size_t, std::mt19937& random) { return noise(random); };
    const auto drifting = [&](std::size_t i, std::mt19937& random) {
      return (1 + 0.03 * static_cast<double>(i) / 100) * noise(random);
    };
    EXPECT_GE(steady_seeds(100, 200, still), 90);
    EXPECT_EQ(steady_seeds(100, outliers == 0 ? 100 : 200, drifting), 0);
  }
}

}  // namespace
}  // namespace convtime
