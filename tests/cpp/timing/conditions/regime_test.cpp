#include "timing/conditions/regime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "helpers.h"
#include "timing/conditions/regimes.h"

namespace convtime {
namespace {

constexpr double kMaxClockHz = 1.98e9;
constexpr double kCallSeconds = 0.5e-3;

/// A device whose clock under load falls, all at once, when more heat came in than it stores.
struct FakeGpu {
  double stored_seconds = 0.06;  ///< of load
  double cooling = 1;            ///< seconds of load that a second of idling makes good
  double rested_hz = 1.63e9;
  double fallen_hz = 1.39e9;
  double idle_hz = 1.96e9;
  double heat_seconds = 0;

  void idle(double seconds) { heat_seconds = std::max(heat_seconds - cooling * seconds, 0.0); }

  double call() {
    heat_seconds += kCallSeconds;
    return heat_seconds > stored_seconds ? fallen_hz : rested_hz;
  }
};

struct Step {
  double gap_seconds;
  std::size_t calls;
  BatchFate fate;
};

/// What the sampler does with a regime for one candidate, without waiting for anything.
Step step(RegimeControl& regime, FakeGpu& gpu) {
  Step done{regime.gap_seconds(), 0, BatchFate::kKeep};
  gpu.idle(done.gap_seconds);
  regime.idled(done.gap_seconds);
  done.calls =
      std::max<std::size_t>(1, static_cast<std::size_t>(regime.batch_seconds() / kCallSeconds));
  RegimeBatch batch{done.gap_seconds > 0 ? gpu.idle_hz : kNan, {{}}, 0};
  for (std::size_t i = 0; i < done.calls; ++i) {
    batch.clocks_hz[0].push_back(gpu.call());
  }
  batch.wall_seconds = kCallSeconds * static_cast<double>(done.calls);
  done.fate = regime.judge(batch);
  return done;
}

std::vector<Step> steps(std::size_t count, RegimeControl& regime, FakeGpu& gpu) {
  std::vector<Step> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(step(regime, gpu));
  }
  return all;
}

std::size_t kept(const std::vector<Step>& all) {
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [](const Step& done) { return done.fate == BatchFate::kKeep; }));
}

Outcome<Regime> outcome_at(const RegimeControl& regime, double clock_hz, bool steady = true) {
  const std::vector<std::vector<double>> clocks_hz = {std::vector<double>(20, clock_hz)};
  return regime.outcome(clocks_hz, steady);
}

TEST(RegimeNames, AreReadAsTheyAreWritten) {
  for (const Regime regime : {Regime::kAuto, Regime::kAsIs, Regime::kBurst, Regime::kSustained}) {
    EXPECT_EQ(enum_from_string<Regime>("regime", to_string(regime)), regime);
  }
  EXPECT_THROW(enum_from_string<Regime>("regime", "hot"), std::invalid_argument);
}

TEST(AsIs, LeavesTheDeviceAlone) {
  RegimeControl regime;
  FakeGpu gpu{.stored_seconds = 0};
  EXPECT_EQ(regime.gap_seconds(), 0);
  EXPECT_EQ(step(regime, gpu).fate, BatchFate::kKeep);
  EXPECT_EQ(regime.warmup({}).min_steady_seconds, Warmup{}.min_steady_seconds);
  EXPECT_EQ(outcome_at(regime, 1e9).value, Regime::kAsIs);
  EXPECT_EQ(outcome_at(regime, 1e9).reason, "");
}

class Burst : public testing::Test {
 protected:
  BurstRegime regime_{kMaxClockHz};
  FakeGpu gpu_;
};

TEST_F(Burst, KeepsARestedDeviceAtItsClockWithEverShorterGaps) {
  std::vector<Step> all;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(regime_.settled(), i >= 3);  // once some batches agree
    all.push_back(step(regime_, gpu_));
  }
  EXPECT_EQ(all[0].gap_seconds, BurstLimits{}.first_gap_seconds);
  EXPECT_EQ(all[1].gap_seconds, all[0].gap_seconds);  // one batch compares with nothing
  EXPECT_LT(all[11].gap_seconds, 0.1 * all[0].gap_seconds);
  EXPECT_GE(all[11].gap_seconds, 0.9 * BurstLimits{}.batch_seconds);  // busy half of the time
  EXPECT_EQ(kept(all), 11U);  // the first one had nothing before it to be compared with
  EXPECT_EQ(outcome_at(regime_, gpu_.rested_hz).value, Regime::kBurst);
}

TEST_F(Burst, IdlesLongerWhereTheClockFalls) {
  BurstRegime regime(kMaxClockHz, {.max_idle_seconds = 1000});
  FakeGpu gpu{.stored_seconds = 0.0115, .cooling = 0.05};  // 5 ms need 0.1 s
  const std::vector<Step> all = steps(100, regime, gpu);
  EXPECT_GT(kept(all), 70U);
  const auto fallen = std::find_if(
      all.begin(), all.end(), [](const Step& done) { return done.fate == BatchFate::kSetAside; });
  ASSERT_NE(fallen, all.end());
  EXPECT_GT((fallen + 1)->gap_seconds, 1.9 * fallen->gap_seconds);
  EXPECT_EQ(outcome_at(regime, gpu.rested_hz).value, Regime::kBurst);
}

TEST_F(Burst, MakesBatchesShorterWhereOneAloneMakesTheClockFall) {
  FakeGpu gpu{.stored_seconds = 0.0031};  // 6 of 10 calls
  const std::vector<Step> all = steps(8, regime_, gpu);
  EXPECT_EQ(all[0].calls, 10U);
  EXPECT_EQ(all[0].fate, BatchFate::kSetAside);
  EXPECT_EQ(all[7].calls, 5U);
  EXPECT_EQ(all[7].fate, BatchFate::kKeep);
}

/// A batch of calls at this clock.
RegimeBatch batch_at(double clock_hz, double wall_seconds = 5e-3, std::size_t calls = 10) {
  return {1.96e9, {std::vector<double>(calls, clock_hz)}, wall_seconds};
}

void expect_fates(RegimeControl& regime,
                  const std::vector<std::pair<double, BatchFate>>& fate_at_clock) {
  for (const auto& [clock_hz, fate] : fate_at_clock) {
    EXPECT_EQ(regime.judge(batch_at(clock_hz)), fate) << clock_hz;
  }
}

TEST_F(Burst, IdlesLongerBeforeSamplesAreLost) {
  regime_.judge(batch_at(1.63e9));
  EXPECT_EQ(regime_.judge(batch_at(0.985 * 1.63e9)), BatchFate::kKeep);
  EXPECT_EQ(regime_.gap_seconds(), 2 * BurstLimits{}.first_gap_seconds);
}

TEST_F(Burst, IdlesAsLongAsItWorksAndNoLongerThanItMay) {
  for (int i = 0; i < 20; ++i) {
    regime_.judge(batch_at(1.63e9, 0.2));
  }
  EXPECT_EQ(regime_.gap_seconds(), 0.2);
  regime_.judge(batch_at(1.63e9, 7));
  EXPECT_EQ(regime_.gap_seconds(), BurstLimits{}.max_gap_seconds);
  regime_.judge(batch_at(1.4e9));
  EXPECT_EQ(regime_.gap_seconds(), BurstLimits{}.max_gap_seconds);
}

TEST_F(Burst, IsNotGivenUpForBatchesThatFailNowAndThen) {
  regime_.judge(batch_at(1.63e9));
  for (int i = 0; i < 20; ++i) {
    expect_fates(regime_, {{1.4e9, BatchFate::kSetAside}, {1.63e9, BatchFate::kKeep}});
  }
  // One that was cut short is not compared.
  EXPECT_EQ(regime_.judge(batch_at(1.75e9, 1e-3, 2)), BatchFate::kKeep);
  expect_fates(regime_, {{1.63e9, BatchFate::kKeep}, {1.75e9, BatchFate::kSetEarlierAside}});
}

TEST_F(Burst, WarmsUpInAFewBatches) {
  const Warmup warmup = BurstRegime(kMaxClockHz).warmup({.calls = 7, .steady = false});
  EXPECT_EQ(warmup.calls, 7U);
  EXPECT_TRUE(warmup.steady);
  EXPECT_EQ(warmup.min_steady_seconds, 0);
  EXPECT_LE(warmup.max_steady_seconds, 10 * BurstLimits{}.batch_seconds);
}

TEST_F(Burst, SetsAsideWhatWasSampledBeforeTheDeviceHadRecovered) {
  FakeGpu hot{.rested_hz = 1.5e9};
  steps(3, regime_, hot);
  FakeGpu rested;
  EXPECT_EQ(step(regime_, rested).fate, BatchFate::kSetEarlierAside);
  EXPECT_FALSE(regime_.settled());
  EXPECT_EQ(step(regime_, rested).fate, BatchFate::kKeep);
}

TEST_F(Burst, NoticesAClockThatRisesLittleByLittle) {
  regime_.judge(batch_at(1.600e9));
  expect_fates(regime_, {{1.625e9, BatchFate::kKeep},
                         {1.640e9, BatchFate::kSetEarlierAside},
                         {1.630e9, BatchFate::kKeep},
                         {1.660e9, BatchFate::kKeep},
                         {1.670e9, BatchFate::kSetEarlierAside}});
}

TEST_F(Burst, GivesUpOnADeviceThatNeverRecovers) {
  FakeGpu gpu{.cooling = 0};
  std::vector<Step> all;
  while ((all.empty() || all.back().fate != BatchFate::kSetAllAside) && all.size() < 1000) {
    all.push_back(step(regime_, gpu));
  }
  ASSERT_LT(all.size(), 50U);
  EXPECT_EQ(regime_.gap_seconds(), 0);  // from here on as it is
  EXPECT_EQ(regime_.batch_seconds(), RegimeControl().batch_seconds());
  EXPECT_TRUE(regime_.settled());
  EXPECT_EQ(step(regime_, gpu).fate, BatchFate::kKeep);
  const Outcome<Regime> outcome = outcome_at(regime_, gpu.fallen_hz);
  EXPECT_EQ(outcome.value, Regime::kAsIs);
  EXPECT_TRUE(contains(outcome.reason, "10 batches in a row, most recently to 85.3 %"));
}

TEST_F(Burst, IdlesNoLongerInAllThanItMay) {
  BurstRegime regime(kMaxClockHz, {.max_idle_seconds = 1});
  FakeGpu gpu;
  for (int i = 0; i < 1000 && !regime.exhausted(); ++i) {
    step(regime, gpu);
  }
  EXPECT_TRUE(regime.exhausted());
  EXPECT_LT(regime.idle_seconds(), 1 + BurstLimits{}.max_gap_seconds);
  // What is sampled nevertheless is of the regime, too.
  EXPECT_GT(regime.gap_seconds(), 0);
  EXPECT_EQ(kept(steps(20, regime, gpu)), 20U);
}

TEST_F(Burst, IsAskedToEndBeforeItsSamplesAreGivenUp) {
  for (int i = 0; i < 3; ++i) {
    regime_.judge(batch_at(1.63e9));
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(regime_.exhausted());
    expect_fates(regime_, {{1.4e9, BatchFate::kSetAside}});
  }
  EXPECT_TRUE(regime_.exhausted());
  EXPECT_EQ(outcome_at(regime_, 1.63e9).value, Regime::kBurst);
  for (int i = 0; i < 4; ++i) {  // it was not, since there were too few
    expect_fates(regime_, {{1.4e9, BatchFate::kSetAside}});
  }
  expect_fates(regime_, {{1.4e9, BatchFate::kSetAllAside}});
  EXPECT_FALSE(regime_.exhausted());
}

TEST_F(Burst, IsRefusedWhereTheClockIsLowWithoutLoad) {
  FakeGpu locked{.rested_hz = 1.2e9, .idle_hz = 1.2e9};
  steps(5, regime_, locked);
  const Outcome<Regime> outcome = outcome_at(regime_, locked.rested_hz);
  EXPECT_EQ(outcome.value, Regime::kAsIs);
  EXPECT_EQ(outcome.reason,
            "the clock came to 1200 MHz of 1980 MHz even without load: it is locked, or the GPU is "
            "hot or capped");
}

TEST_F(Burst, IsRefusedWhereClocksAreNotKnown) {
  FakeGpu silent{.rested_hz = kNan, .fallen_hz = kNan, .idle_hz = kNan};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(step(regime_, silent).fate, i < 4 ? BatchFate::kSetAside : BatchFate::kSetAllAside);
  }
  EXPECT_EQ(outcome_at(regime_, kNan).value, Regime::kAsIs);
  EXPECT_EQ(outcome_at(regime_, kNan).reason, "the GPU's clock is not known");
}

TEST_F(Burst, IsRefusedWhereTooManySamplesAreBelowTheHighestClock) {
  steps(5, regime_, gpu_);
  std::vector<std::vector<double>> clocks_hz = {std::vector<double>(20, gpu_.rested_hz)};
  clocks_hz[0][3] = gpu_.fallen_hz;
  EXPECT_EQ(regime_.outcome(clocks_hz, true).value, Regime::kBurst);  // one of 20
  std::fill_n(clocks_hz[0].begin(), 5, gpu_.fallen_hz);
  const Outcome<Regime> outcome = regime_.outcome(clocks_hz, true);
  EXPECT_EQ(outcome.value, Regime::kAsIs);
  EXPECT_EQ(outcome.reason.find("25.0 % of the samples are below 98 % of 1630 MHz, "), 0U)
      << outcome.reason;
}

TEST_F(Burst, ForgivesTheFirstCallBehindAGap) {
  const auto judge = [](BurstRegime& regime, const std::vector<std::vector<double>>& clocks_hz) {
    return regime.judge({1.96e9, clocks_hz, 2e-3});
  };
  std::vector<double> clocks_hz(7, 1.63e9);
  clocks_hz.front() = 1.58e9;
  const std::vector<double> high(3, 1.63e9);
  BurstRegime few(kMaxClockHz);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(judge(regime_, {clocks_hz}) == BatchFate::kKeep, i > 0);
    EXPECT_EQ(judge(few, {{1.58e9, 1.63e9, 1.63e9}, high}) == BatchFate::kKeep, i > 0);
  }
  EXPECT_EQ(judge(few, {high, {1.58e9, 1.63e9, 1.63e9}}), BatchFate::kKeep);
  EXPECT_EQ(judge(few, {high, {1.58e9, 1.58e9, 1.63e9}}), BatchFate::kSetAside);
  const double gap = regime_.gap_seconds();
  clocks_hz[1] = clocks_hz.front();
  EXPECT_EQ(judge(regime_, {clocks_hz}), BatchFate::kSetAside);
  EXPECT_GT(regime_.gap_seconds(), gap);
}

TEST_F(Burst, KnowsEachCandidatesOwnHighestClock) {
  const std::vector<double> matmul(8, 1.63e9);
  const std::vector<double> copy(8, 1.95e9);
  regime_.judge({1.96e9, {matmul, copy}, 5e-3});
  EXPECT_EQ(regime_.judge({1.96e9, {matmul, copy}, 5e-3}), BatchFate::kKeep);
  const std::vector<double> slow_copy(8, 1.7e9);
  EXPECT_EQ(regime_.judge({1.96e9, {matmul, slow_copy}, 5e-3}), BatchFate::kSetAside);
}

TEST(Sustained, LoadsTheDeviceUntilItIsSteady) {
  const SustainedRegime regime;
  const Warmup warmup = regime.warmup({.calls = 7, .steady = false});
  EXPECT_EQ(warmup.calls, 7U);
  EXPECT_TRUE(warmup.steady);
  EXPECT_EQ(warmup.min_steady_seconds, SustainedLimits{}.min_seconds);
  EXPECT_EQ(warmup.max_steady_seconds, SustainedLimits{}.max_seconds);
  EXPECT_EQ(warmup.max_series_seconds, 2 * SustainedLimits{}.min_seconds);
  EXPECT_EQ(regime.gap_seconds(), 0);
  EXPECT_EQ(outcome_at(regime, 1.4e9).value, Regime::kSustained);
}

TEST(Sustained, IsRefusedWhereItDriftsOrNothingIsKnown) {
  const SustainedRegime regime;
  const std::vector<std::vector<double>> clocks_hz = {{1.39e9, 1.45e9}, {1.5e9, 1.41e9}};
  const Outcome<Regime> drifts = regime.outcome(clocks_hz, false);
  EXPECT_EQ(drifts.value, Regime::kAsIs);
  EXPECT_EQ(drifts.reason.find("times or clocks still drifted after 8.0 s of load"), 0U)
      << drifts.reason;
  EXPECT_TRUE(contains(drifts.reason, "between 1390 MHz and 1500 MHz"));
  EXPECT_EQ(outcome_at(regime, kNan).reason, "the GPU's clock is not known");
}

/// A device whose clock is that much, whatever it does.
FakeGpu gpu_at(double clock_hz) {
  return {.rested_hz = clock_hz, .fallen_hz = clock_hz, .idle_hz = clock_hz};
}

double rested_for(const std::vector<Step>& all) {
  double seconds = 0;
  for (const Step& done : all) {
    seconds += done.gap_seconds;
  }
  return seconds;
}

class Auto : public testing::Test {
 protected:
  AutoRegime regime_{kMaxClockHz};
};

TEST_F(Auto, CostsNothingWhereTheClockStaysUp) {
  FakeGpu gpu = gpu_at(0.99 * kMaxClockHz);
  EXPECT_EQ(regime_.warmup({}).min_steady_seconds, Warmup{}.min_steady_seconds);
  EXPECT_EQ(step(regime_, gpu).fate, BatchFate::kKeep);
  EXPECT_TRUE(regime_.settled());
  const std::vector<Step> all = steps(50, regime_, gpu);
  EXPECT_EQ(kept(all), all.size());
  EXPECT_EQ(rested_for(all), 0);
  EXPECT_EQ(outcome_at(regime_, 0.99 * kMaxClockHz).value, Regime::kAsIs);
  EXPECT_EQ(outcome_at(regime_, 0.99 * kMaxClockHz).reason,
            "the clock did not fall under the calls");
}

TEST_F(Auto, TakesBurstsWhereTheClockFalls) {
  FakeGpu gpu{.rested_hz = kMaxClockHz};
  std::vector<Step> all = steps(3, regime_, gpu);  // as long as the device stores the heat
  EXPECT_EQ(kept(all), all.size());
  while (all.back().fate == BatchFate::kKeep) {
    ASSERT_LT(all.size(), 10U);
    all.push_back(step(regime_, gpu));
  }
  EXPECT_EQ(all.back().fate, BatchFate::kBeginAnew);
  EXPECT_FALSE(regime_.settled());
  EXPECT_EQ(regime_.warmup({}).max_steady_seconds,
            BurstRegime(kMaxClockHz).warmup({}).max_steady_seconds);
  all = steps(12, regime_, gpu);
  EXPECT_EQ(all[0].gap_seconds, AutoRegime::kUnaskedBursts.first_gap_seconds);
  EXPECT_EQ(kept(all), 11U);  // as of a burst that was asked for
  EXPECT_TRUE(regime_.settled());
  EXPECT_EQ(outcome_at(regime_, kMaxClockHz).value, Regime::kBurst);
  EXPECT_EQ(outcome_at(regime_, kMaxClockHz).reason,
            "the clock fell from 1980 MHz to 1390 MHz under the calls");
}

TEST_F(Auto, TakesManyBurstsInTheTimeThatNobodyAskedFor) {
  FakeGpu gpu{.rested_hz = kMaxClockHz};
  while (step(regime_, gpu).fate != BatchFate::kBeginAnew) {
  }
  std::size_t bursts = 0;
  while (!regime_.exhausted()) {
    ASSERT_LT(bursts, 1000U);
    bursts += step(regime_, gpu).fate == BatchFate::kKeep;
  }
  EXPECT_GE(bursts, 10U);
  EXPECT_LT(regime_.idle_seconds(), 1.4);
}

TEST_F(Auto, RestsOnceToSeeWhetherALowClockFell) {
  FakeGpu gpu{.heat_seconds = 1};  // of work before
  std::vector<Step> all = steps(2, regime_, gpu);
  EXPECT_EQ(rested_for(all), 0);
  EXPECT_FALSE(regime_.settled());
  const Step rested = step(regime_, gpu);
  EXPECT_GT(rested.gap_seconds, 0.05);
  EXPECT_EQ(rested.fate, BatchFate::kBeginAnew);
  EXPECT_EQ(outcome_at(regime_, gpu.fallen_hz).value, Regime::kAsIs);  // no burst was seen yet
}

TEST_F(Auto, DoesNotRestForClocksThatAreNoLongerKnown) {
  FakeGpu gpu = gpu_at(1.5e9);
  steps(2, regime_, gpu);
  EXPECT_GT(regime_.gap_seconds(), 0);
  EXPECT_EQ(regime_.judge({1.5e9, {{kNan, kNan}}, 5e-3}), BatchFate::kKeep);
  EXPECT_EQ(regime_.gap_seconds(), 0);
}

TEST_F(Auto, LeavesALockedClockAlone) {
  FakeGpu gpu = gpu_at(1.5e9);
  const std::vector<Step> all = steps(50, regime_, gpu);
  EXPECT_EQ(kept(all), all.size());
  EXPECT_LT(rested_for(all), 0.2);
  EXPECT_TRUE(regime_.settled());
  EXPECT_EQ(outcome_at(regime_, 1.5e9).reason, "the clock did not fall under the calls");
}

TEST_F(Auto, WaitsForADeviceThatWakes) {
  for (const double clock_hz : {0.4e9, 0.9e9, 1.5e9, kMaxClockHz}) {
    EXPECT_EQ(regime_.gap_seconds(), 0);
    EXPECT_EQ(regime_.judge({kNan, {std::vector<double>(10, clock_hz)}, 5e-3}), BatchFate::kKeep);
    EXPECT_EQ(regime_.settled(), clock_hz == kMaxClockHz);
  }
  EXPECT_EQ(regime_.gap_seconds(), 0);
}

TEST_F(Auto, IsOfTheCandidateWhoseClockFalls) {
  const std::vector<double> high(10, kMaxClockHz);
  EXPECT_EQ(regime_.judge({kNan, {high, high}, 5e-3}), BatchFate::kKeep);
  EXPECT_EQ(regime_.judge({kNan, {high, std::vector<double>(10, 1.4e9)}, 5e-3}),
            BatchFate::kBeginAnew);
}

TEST_F(Auto, SaysWhyNoBurstWasReached) {
  regime_.judge(batch_at(kMaxClockHz));
  EXPECT_EQ(regime_.judge(batch_at(1.6e9)), BatchFate::kBeginAnew);
  regime_.judge(batch_at(1.6e9));
  BatchFate fate = BatchFate::kKeep;
  for (int i = 0; i < 20 && fate != BatchFate::kSetAllAside; ++i) {
    fate = regime_.judge(batch_at(1.4e9));
  }
  EXPECT_EQ(fate, BatchFate::kSetAllAside);
  const Outcome<Regime> outcome = outcome_at(regime_, 1.4e9);
  EXPECT_EQ(outcome.value, Regime::kAsIs);
  EXPECT_TRUE(
      contains(outcome.reason, "under the calls, and no burst was reached: the clock fell below"));
}

TEST_F(Auto, SaysWhatItCannotTell) {
  AutoRegime blind(kMaxClockHz);
  EXPECT_EQ(blind.judge({kNan, {{kNan, kNan}}, 5e-3}), BatchFate::kKeep);
  EXPECT_TRUE(blind.settled());
  EXPECT_EQ(outcome_at(blind, kNan).reason, "the GPU's clock is not known");
  AutoRegime hasty(kMaxClockHz);
  hasty.judge({kNan, {std::vector<double>(10, 1.6e9)}, 5e-3});
  EXPECT_EQ(outcome_at(hasty, 1.6e9).reason,
            "there were too few calls to tell whether the clock falls");
}

}  // namespace
}  // namespace convtime
