#include "timing/calibration/calibrator.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace convtime {
namespace {

constexpr CalibrationState kEvents{.device = 0, .method = Method::kEvent, .held = true};

/// A device whose kernel takes 2000 cycles, and 3 us more by events.
struct FakeReference {
  double clock_hz = 2e9;
  double uncertainty_seconds = 10e-9;
  std::size_t events = 0;
  std::size_t kernels = 0;

  TimedReference operator()(Method method) {
    ++(method == Method::kKernel ? kernels : events);
    const double kernel_seconds = 2000 / clock_hz;
    return {method == Method::kKernel ? kernel_seconds : kernel_seconds + 3e-6, uncertainty_seconds,
            clock_hz};
  }
};

Overhead calibrate(Calibrator& calibrator, FakeReference& reference,
                   const std::string& kernel_problem = "",
                   const CalibrationState& state = kEvents) {
  return calibrator.calibrate(
      state, [&](Method method) { return reference(method); }, kernel_problem);
}

TEST(Calibrator, FindsWhatAMethodAddsToAKernel) {
  Calibrator calibrator;
  FakeReference reference;
  const Overhead overhead = calibrate(calibrator, reference);
  EXPECT_NEAR(overhead.seconds, 3e-6, 1e-12);
  EXPECT_NEAR(overhead.uncertainty_seconds, 20e-9, 1e-12);  // of both times
}

TEST(Calibrator, TimesTheKernelOnceForEachClock) {
  Calibrator calibrator;
  FakeReference reference;
  calibrate(calibrator, reference);
  calibrate(calibrator, reference);
  EXPECT_EQ(reference.events, 2U);
  EXPECT_EQ(reference.kernels, 1U);
  // At half of the clock the kernel takes twice as long, which is none of the events' cost.
  reference.clock_hz = 1e9;
  EXPECT_NEAR(calibrate(calibrator, reference).seconds, 3e-6, 1e-12);
  EXPECT_EQ(reference.kernels, 2U);
  reference.clock_hz = 2e9;
  EXPECT_NEAR(calibrate(calibrator, reference).seconds, 3e-6, 1e-12);
  EXPECT_EQ(reference.kernels, 2U);
}

TEST(Calibrator, IsLessCertainWhereTheClockMoved) {
  Calibrator calibrator;
  FakeReference reference;
  calibrate(calibrator, reference);
  reference.clock_hz = 1.99e9;
  const Overhead overhead = calibrate(calibrator, reference);
  EXPECT_EQ(reference.kernels, 1U);
  EXPECT_NEAR(overhead.uncertainty_seconds, 20e-9 + 0.005 * 1e-6, 1e-12);
  EXPECT_NEAR(overhead.seconds, 3e-6, overhead.uncertainty_seconds);
}

TEST(Calibrator, IsLessCertainOfGraphsAfterAFlush) {
  Calibrator calibrator;
  FakeReference reference;
  const auto uncertainty = [&](Method method, std::optional<L2Lines> flush) {
    const CalibrationState state{.device = 0, .method = method, .flush = flush, .held = true};
    return calibrate(calibrator, reference, "", state).uncertainty_seconds;
  };
  EXPECT_NEAR(uncertainty(Method::kGraph, std::nullopt), 20e-9, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kEvent, L2Lines::kClean), 20e-9, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kGraph, L2Lines::kClean), 20e-9 + 0.4e-6, 1e-12);
  EXPECT_NEAR(uncertainty(Method::kGraph, L2Lines::kDirty), 20e-9 + 0.4e-6, 1e-12);
}

TEST(Calibrator, TrustsNoTimeOfAnUnknownClock) {
  Calibrator calibrator;
  FakeReference reference{.clock_hz = kUnknownClockHz};
  const auto calibrate_unknown = [&] {
    return calibrator.calibrate(
        kEvents,
        [&](Method method) {
          ++(method == Method::kKernel ? reference.kernels : reference.events);
          return TimedReference{method == Method::kKernel ? 2e-6 : 5e-6, 1e-9, kUnknownClockHz};
        },
        "");
  };
  EXPECT_NEAR(calibrate_unknown().seconds, 3e-6, 1e-12);
  EXPECT_NEAR(calibrate_unknown().uncertainty_seconds, 2e-9, 1e-12);
  EXPECT_EQ(reference.kernels, 2U);
  EXPECT_FALSE(calibrator.last(kEvents, kUnknownClockHz).has_value());
}

TEST(Calibrator, RemembersTheLastCalibrationOfEachState) {
  Calibrator calibrator;
  FakeReference reference;
  EXPECT_FALSE(calibrator.last(kEvents, 2e9).has_value());
  calibrate(calibrator, reference);
  ASSERT_TRUE(calibrator.last(kEvents, 1.985e9).has_value());
  EXPECT_NEAR(calibrator.last(kEvents, 1.985e9)->seconds, 3e-6, 1e-12);
  EXPECT_FALSE(calibrator.last(kEvents, 1.5e9).has_value());
  const CalibrationState others[] = {
      {.device = 1, .method = Method::kEvent, .held = true},
      {.device = 0, .method = Method::kGraph, .held = true},
      {.device = 0, .method = Method::kEvent, .flush = L2Lines::kDirty, .held = true},
      {.device = 0, .method = Method::kEvent, .flush = L2Lines::kClean, .held = true},
      {.device = 0, .method = Method::kEvent, .held = false},
  };
  for (const CalibrationState& other : others) {
    EXPECT_FALSE(calibrator.last(other, 2e9).has_value());
  }
}

TEST(Calibrator, NeedsNoCuptiWhereTheKernelIsKnown) {
  Calibrator calibrator;
  FakeReference reference;
  calibrate(calibrator, reference);
  EXPECT_NEAR(calibrate(calibrator, reference, "it is taken").seconds, 3e-6, 1e-12);
  reference.clock_hz = 1e9;
  try {
    calibrate(calibrator, reference, "it is taken");
    FAIL() << "took a time of another clock";
  } catch (const std::runtime_error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("at this clock is unknown"), std::string::npos) << said;
    EXPECT_NE(said.find("CUPTI cannot be used: it is taken"), std::string::npos) << said;
  }
  EXPECT_EQ(reference.kernels, 1U);
}

TEST(Calibrator, NeedsAKernelThatWasSeen) {
  Calibrator calibrator;
  const auto sees_nothing = [](Method method) {
    return TimedReference{method == Method::kKernel ? 0 : 5e-6, 1e-9, 2e9};
  };
  EXPECT_THROW(calibrator.calibrate(kEvents, sees_nothing, ""), std::runtime_error);
  FakeReference reference;
  EXPECT_NEAR(calibrate(calibrator, reference).seconds, 3e-6, 1e-12);
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
  samples.seconds = {5e-6, 2e-6};
  samples.discarded = {6e-6};
  subtract({3e-6, 1e-9}, {&samples, 1});
  EXPECT_EQ(samples.raw_seconds, (std::vector<double>{5e-6, 2e-6}));
  EXPECT_DOUBLE_EQ(samples.seconds[0], 2e-6);
  EXPECT_DOUBLE_EQ(samples.seconds[1], -1e-6);
  EXPECT_DOUBLE_EQ(samples.discarded[0], 3e-6);
}

}  // namespace
}  // namespace convtime
