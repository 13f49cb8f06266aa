#include "timing/method_choice.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "helpers.h"
#include "timing/trace/attribution.h"

namespace convtime {
namespace {

CandidateSamples calls_with(const std::vector<std::size_t>& activities) {
  CandidateSamples samples;
  for (const std::size_t count : activities) {
    samples.samples.push_back({.activities = std::vector<DeviceActivity>(count)});
  }
  return samples;
}

TEST(NoneIssuedWork, IsTrueOnlyWhereNoCandidateDid) {
  const CandidateSamples none = calls_with({0, 0});
  const CandidateSamples always = calls_with({1, 2});
  const CandidateSamples once = calls_with({0, 1});
  EXPECT_TRUE(none_issued_work(std::vector{none}));
  EXPECT_TRUE(none_issued_work(std::vector{none, none}));
  EXPECT_FALSE(none_issued_work(std::vector{once}));
  // One that leaves the device alone does not cost the others their times.
  EXPECT_FALSE(none_issued_work(std::vector{none, always}));
  EXPECT_FALSE(none_issued_work(std::vector{always, none}));
}

/// One sampling with a method: what the loop asked for, and the samples or the exception.
struct Tried {
  Method method;
  std::function<Timing()> sample;
  std::size_t earlier_calls = 0;  ///< that it must be given
};

Timing timing_with(CandidateSamples samples) {
  Timing timing;
  timing.samples.candidates.push_back(std::move(samples));
  timing.regime = {Regime::kAsIs, "of the sampling"};
  return timing;
}

Timing with_work() { return timing_with(calls_with({1, 1})); }

/// Four calls in all.
Timing without_work() {
  Timing timing = timing_with(calls_with({0, 0}));
  timing.samples.warmup_calls = 2;
  timing.samples.warmup_seconds = 0.5;
  timing.samples.sampling_seconds = 0.25;
  timing.samples.candidates[0].first_call.seconds = 0.125;
  return timing;
}

Timing loses_records() { throw TraceLost("a profiler has begun"); }

/// Run the loop, and expect these samplings. Each adds two calls to the earlier ones, as
/// sample_rounds() does.
Timing run_methods(const TimingOptions& asked, const std::vector<Tried>& tried) {
  std::size_t next = 0;
  const auto sample = [&](const TimingOptions& options, EarlierCalls& earlier) {
    if (next == tried.size()) {
      throw std::logic_error("one method too many");
    }
    const Tried& one = tried[next++];
    EXPECT_EQ(options.method, one.method);
    EXPECT_EQ(earlier.count, one.earlier_calls);
    earlier.count += 2;
    return one.sample();
  };
  Timing timing = sample_by_methods(asked, sample);
  EXPECT_EQ(next, tried.size());
  return timing;
}

TEST(SampleByMethods, SamplesWithTheRequestedMethodAlone) {
  // Only kernel times show whether a call issues work.
  for (const auto& [method, sample] : {std::pair{Method::kKernel, &with_work},
                                       {Method::kEvent, &without_work},
                                       {Method::kCpu, &without_work}}) {
    const TimingOptions asked{.method = method, .on_gpu = method != Method::kCpu};
    const Timing timing = run_methods(asked, {{method, sample}});
    EXPECT_EQ(timing.method.value, method);
    EXPECT_EQ(timing.method.reason, "");
  }
}

TEST(SampleByMethods, SaysWhyAutoTakesAMethod) {
  EXPECT_EQ(run_methods({.on_gpu = true}, {{Method::kKernel, with_work}}).method.reason,
            "the work is on a GPU and CUPTI can be used");
  const Timing host = run_methods({}, {{Method::kCpu, without_work}});
  EXPECT_EQ(host.method.value, Method::kCpu);
  EXPECT_EQ(host.method.reason, "the work is on the CPU");
  EXPECT_EQ(host.regime.reason, "of the sampling");
}

TEST(SampleByMethods, PassesLostCallsToEvents) {
  const Timing timing =
      run_methods({.on_gpu = true, .regime = Regime::kBurst},
                  {{Method::kKernel, loses_records}, {Method::kEvent, with_work, 2}});
  EXPECT_EQ(timing.method.value, Method::kEvent);
  EXPECT_EQ(timing.method.reason, "kernel times are unavailable: a profiler has begun");
  EXPECT_EQ(timing.regime.reason, "of the sampling");
  EXPECT_EQ(run_methods({.on_gpu = true, .other_devices = {1}},
                        {{Method::kKernel, loses_records}, {Method::kSync, with_work, 2}})
                .method.value,
            Method::kSync);
}

TEST(SampleByMethods, TimesCallsWithoutWorkOnTheHostAsTheyAre) {
  for (const Regime regime : {Regime::kBurst, Regime::kAsIs}) {
    std::vector<Regime> regimes;
    EarlierCalls last;
    const auto sample = [&](const TimingOptions& options, EarlierCalls& earlier) {
      regimes.push_back(options.regime);
      last = earlier;
      Timing timing = without_work();
      timing.regime.reason = "";
      return timing;
    };
    const Timing timing = sample_by_methods({.on_gpu = true, .regime = regime}, sample);
    EXPECT_EQ(timing.method.value, Method::kCpu);
    EXPECT_EQ(timing.method.reason, "the calls issue no work to the GPU");
    EXPECT_EQ(timing.regime.reason, regime == Regime::kAsIs ? "" : timing.method.reason);
    EXPECT_EQ(regimes, (std::vector{regime, Regime::kAsIs}));
    ASSERT_EQ(last.first_calls.size(), 1U);
    EXPECT_EQ(last.first_calls[0].seconds, 0.125);
    EXPECT_EQ(last.count, 4U);
    EXPECT_EQ(last.seconds, 0.75);
  }
}

TEST(SampleByMethods, DoesNotTakeUnrecordedWorkForNone) {
  const auto unrecorded = [] {
    Timing timing = without_work();
    timing.samples.candidates[0].unrecorded = {"cuB", "cuA"};
    return timing;
  };
  EXPECT_EQ(
      run_methods({.on_gpu = true}, {{Method::kKernel, unrecorded}, {Method::kEvent, with_work, 4}})
          .method.reason,
      "kernel times are unavailable: CUPTI has no record of the calls' only work, which is "
      "issued by cuA, cuB");
  const auto of_others = [] {
    Timing timing = without_work();
    timing.samples.of_other_threads = 1;
    return timing;
  };
  const Timing timing =
      run_methods({.on_gpu = true}, {{Method::kKernel, of_others}, {Method::kEvent, with_work, 4}});
  EXPECT_TRUE(contains(timing.method.reason, "is from threads that"));
}

template <typename Error>
std::string refusal(const TimingOptions& asked, const std::vector<Tried>& tried) {
  return error_of<Error>([&] { run_methods(asked, tried); });
}

TEST(SampleByMethods, TakesNoOtherMethodThanTheRequestedOne) {
  const TimingOptions kernel{.method = Method::kKernel, .on_gpu = true};
  EXPECT_EQ(refusal<std::runtime_error>(kernel, {{Method::kKernel, loses_records}}),
            "method 'kernel' cannot be used: a profiler has begun; use 'event' or 'auto'");
  EXPECT_EQ(refusal<std::invalid_argument>(kernel, {{Method::kKernel, without_work}}),
            "method 'kernel' saw calls that issue no work to the GPU; use 'cpu' for them");
  EXPECT_EQ(refusal<std::invalid_argument>({.method = Method::kEvent}, {}),
            "method 'event' times work on a GPU and this work is on the CPU; use 'cpu' or 'auto', "
            "or name the device");
}

TEST(SampleByMethods, TakesNoOtherMethodAfterTheDeadline) {
  const TimingOptions late{.on_gpu = true, .supervision = {.deadline = Deadline::after(-1)}};
  EXPECT_EQ(refusal<DeadlineError>(late, {{Method::kKernel, loses_records}}),
            "the deadline passed before a sample was taken: kernel times are unavailable: a "
            "profiler has begun");
  EXPECT_EQ(refusal<DeadlineError>(late, {{Method::kKernel, without_work}}),
            "the deadline passed before a sample was taken: the calls issue no work to the GPU");
}

TEST(SampleByMethods, GivesUpKernelTimesAlone) {
  EXPECT_EQ(refusal<TraceLost>({.on_gpu = true}, {{Method::kKernel, loses_records},
                                                  {Method::kEvent, loses_records, 2}}),
            "a profiler has begun");
}

}  // namespace
}  // namespace convtime
