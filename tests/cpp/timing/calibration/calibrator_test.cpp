#include "timing/calibration/calibrator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "helpers.h"

namespace convtime {
namespace {

constexpr CalibrationState kEvents{.device = 0, .method = Method::kEvent, .held = true};

class CalibratorTest : public testing::Test {
 protected:
  /// Of a device whose kernel takes 2000 cycles, and 3 us more by events.
  Overhead calibrate(const std::string& kernel_problem = "",
                     const CalibrationState& state = kEvents) {
    return calibrator_.calibrate(
        state,
        [&](Method method) {
          ++(method == Method::kKernel ? kernels_ : events_);
          const double seconds = 2000 / (std::isnan(clock_hz_) ? 1e9 : clock_hz_);
          return TimedReference{method == Method::kKernel ? seconds : seconds + 3e-6, 10e-9,
                                clock_hz_};
        },
        kernel_problem);
  }

  double clock_hz_ = 2e9;
  std::size_t events_ = 0;
  std::size_t kernels_ = 0;
  Calibrator calibrator_;
};

TEST_F(CalibratorTest, TimesTheKernelOnceForEachClock) {
  const Overhead overhead = calibrate();
  EXPECT_NEAR(overhead.seconds, 3e-6, 1e-12);
  EXPECT_NEAR(overhead.uncertainty_seconds, 20e-9, 1e-12);  // of both times
  calibrate();
  EXPECT_EQ(events_, 2U);
  EXPECT_EQ(kernels_, 1U);
  // At half of the clock the kernel takes twice as long, which is none of the events' cost.
  for (const double clock_hz : {1e9, 2e9}) {
    clock_hz_ = clock_hz;
    EXPECT_NEAR(calibrate().seconds, 3e-6, 1e-12);
    EXPECT_EQ(kernels_, 2U);
  }
}

TEST_F(CalibratorTest, IsLessCertainWhereTheClockMoved) {
  calibrate();
  clock_hz_ = 1.99e9;
  const Overhead overhead = calibrate();
  EXPECT_EQ(kernels_, 1U);
  EXPECT_NEAR(overhead.uncertainty_seconds, 20e-9 + 0.005 * 1e-6, 1e-12);
  EXPECT_NEAR(overhead.seconds, 3e-6, overhead.uncertainty_seconds);
}

TEST_F(CalibratorTest, IsLessCertainOfGraphsAfterAFlush) {
  const auto uncertainty = [&](Method method, std::optional<L2Lines> flush) {
    return calibrate("", {.device = 0, .method = method, .flush = flush, .held = true})
        .uncertainty_seconds;
  };
  EXPECT_NEAR(uncertainty(Method::kGraph, std::nullopt), 20e-9, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kEvent, L2Lines::kClean), 20e-9, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kGraph, L2Lines::kClean), 20e-9 + 0.4e-6, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kGraph, L2Lines::kDirty), 20e-9 + 0.4e-6, 1e-12);
}

TEST_F(CalibratorTest, TrustsNoTimeOfAnUnknownClock) {
  clock_hz_ = kUnknownClockHz;
  for (const std::size_t kernels : {1U, 2U}) {
    const Overhead overhead = calibrate();
    EXPECT_NEAR(overhead.seconds, 3e-6, 1e-12);
    EXPECT_NEAR(overhead.uncertainty_seconds, 20e-9, 1e-12);
    EXPECT_EQ(kernels_, kernels);
  }
  EXPECT_FALSE(calibrator_.last(kEvents, kUnknownClockHz).has_value());
}

TEST_F(CalibratorTest, RemembersTheLastCalibrationOfEachState) {
  EXPECT_FALSE(calibrator_.last(kEvents, 2e9).has_value());
  calibrate();
  ASSERT_TRUE(calibrator_.last(kEvents, 1.985e9).has_value());
  EXPECT_NEAR(calibrator_.last(kEvents, 1.985e9)->seconds, 3e-6, 1e-12);
  EXPECT_FALSE(calibrator_.last(kEvents, 1.5e9).has_value());
  const CalibrationState others[] = {
      {.device = 1, .method = Method::kEvent, .held = true},
      {.device = 0, .method = Method::kGraph, .held = true},
      {.device = 0, .method = Method::kEvent, .flush = L2Lines::kDirty, .held = true},
      {.device = 0, .method = Method::kEvent, .flush = L2Lines::kClean, .held = true},
      {.device = 0, .method = Method::kEvent, .held = false},
  };
  for (const CalibrationState& other : others) {
    EXPECT_FALSE(calibrator_.last(other, 2e9).has_value());
  }
}

TEST_F(CalibratorTest, NeedsNoCuptiWhereTheKernelIsKnown) {
  calibrate();
  EXPECT_NEAR(calibrate("it is taken").seconds, 3e-6, 1e-12);
  clock_hz_ = 1e9;
  const std::string said = error_of<std::runtime_error>([&] { calibrate("it is taken"); });
  EXPECT_TRUE(contains(said, "at this clock is unknown"));
  EXPECT_TRUE(contains(said, "CUPTI cannot be used: it is taken"));
  EXPECT_EQ(kernels_, 1U);
}

TEST_F(CalibratorTest, NeedsAKernelThatWasSeen) {
  const auto sees_nothing = [](Method method) {
    return TimedReference{method == Method::kKernel ? 0 : 5e-6, 1e-9, 2e9};
  };
  EXPECT_THROW(calibrator_.calibrate(kEvents, sees_nothing, ""), std::runtime_error);
  EXPECT_NEAR(calibrate().seconds, 3e-6, 1e-12);
}

TEST(Calibration, ThatFailsSaysWhy) {
  const Outcome<Overhead> failed =
      attempt([]() -> Overhead { throw std::runtime_error("out of memory\nframe #0"); });
  EXPECT_EQ(failed.value.seconds, 0);
  EXPECT_EQ(failed.reason, "out of memory");
  const Outcome<Overhead> done = attempt([] { return Overhead{3e-6, 1e-9}; });
  EXPECT_EQ(done.value.seconds, 3e-6);
  EXPECT_EQ(done.reason, "");
}

TEST(Subtract, TakesTheOverheadOffAllSamplesAndCutsNothingOff) {
  CandidateSamples samples;
  samples.samples = {{.seconds = 5e-6}, {.seconds = 2e-6}};
  samples.discarded = {6e-6};
  subtract({3e-6, 1e-9}, {&samples, 1});
  EXPECT_EQ(column(samples.samples, &Sample::raw_seconds), (std::vector<double>{5e-6, 2e-6}));
  EXPECT_DOUBLE_EQ(samples.samples[0].seconds, 2e-6);
  EXPECT_DOUBLE_EQ(samples.samples[1].seconds, -1e-6);
  EXPECT_DOUBLE_EQ(samples.discarded[0], 3e-6);
}

}  // namespace
}  // namespace convtime
