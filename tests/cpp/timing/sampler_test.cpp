#include "timing/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "helpers.h"
#include "timing/batch.h"
#include "timing/conditions/regimes.h"
#include "timing/trace/attribution.h"

namespace convtime {
namespace {

using std::chrono::milliseconds;
using SecondsOf = std::function<double(Callable&)>;

/// Says that a call took what `seconds_of` says, and writes down the calls.
class FakeTimer : public Timer {
 public:
  explicit FakeTimer(SecondsOf seconds_of = [](Callable&) { return 1.0; })
      : seconds_of_(std::move(seconds_of)) {}

  void run(std::span<Callable* const> calls) override {
    batch_sizes.push_back(calls.size());
    seconds_.clear();
    for (Callable* const callable : calls) {
      if (!replays || batch_sizes.size() == 1) {
        callable->prepare();
        callable->call();
      }
      seconds_.push_back(seconds_of_(*callable));
    }
  }
  /// As many activities in each call as were set, each issued by itself or all of them by one
  /// graph.
  Collection collect(std::size_t calls) override {
    EXPECT_EQ(calls, seconds_.size());
    std::vector<DeviceActivity> issued(activities_each);
    for (std::size_t i = 0; i < issued.size(); ++i) {
      issued[i].correlation = by_one_graph ? 1 : static_cast<std::uint32_t>(i);
      issued[i].unordered = is_unordered(batch_sizes.size()) && !isolated;
    }
    Collection collected{
        .fault = is_faulty(batch_sizes.size()) ? "1 launch without its record" : "",
        .of_other_threads = 2};
    for (const double seconds : seconds_) {
      TimedCall& call = collected.calls.emplace_back(seconds);
      if (activities_each > 0) {
        call.activities = issued;
      }
    }
    collected.calls.front().unrecorded = unrecorded_of_first;
    return collected;
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return queues; }
  void isolate() override { isolated = true; }

  std::size_t largest_batch() const { return *std::ranges::max_element(batch_sizes); }

  std::function<bool(std::size_t)> is_faulty = [](std::size_t) { return false; };  // n-th run
  std::function<bool(std::size_t)> is_unordered = is_faulty;
  bool isolated = false;
  std::vector<std::size_t> batch_sizes;
  std::vector<std::string> unrecorded_of_first;
  bool queues = true;
  bool replays = false;  ///< what was called first, as a graph does
  std::size_t activities_each = 0;
  bool by_one_graph = false;

 private:
  SecondsOf seconds_of_;
  std::vector<double> seconds_;
};

/// Calls get faster by 1 % each until the `settled`th.
SecondsOf warming(std::size_t settled) {
  return [settled, calls = std::size_t{0}](Callable&) mutable {
    return std::pow(0.99, std::min(calls++, settled));
  };
}

/// Each call takes 0.2 ms; what it says it took falls for the first 0.3 s, by more than a busy
/// machine hides.
SecondsOf cooling() {
  return [start = std::chrono::steady_clock::now()](Callable&) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return 1 + 10 * std::max(0.3 - elapsed.count(), 0.0);
  };
}

/// Calls that take 1 s where nothing disturbs them, and 3 s where a thread waits for a core.
class DisturbedTimer final : public FakeTimer {
 public:
  explicit DisturbedTimer(std::size_t undisturbed_every)
      : FakeTimer([this, undisturbed_every](Callable&) {
          const bool disturbed =
              undisturbed_every == 0 || record_.readings.size() % undisturbed_every != 0;
          record_.readings.push_back(
              {.seconds = disturbed ? 3.0 : 1.0, .longest_wait_seconds = disturbed ? 2.0 : 0.0});
          return record_.readings.back().seconds;
        }) {
    record_.cores = 2;
    queues = false;
  }
  Collection collect(std::size_t calls) override {
    Collection collected = FakeTimer::collect(calls);
    std::size_t reading = record_.readings.size() - calls;
    for (TimedCall& call : collected.calls) {
      call.reading = reading++;
    }
    return collected;
  }
  const HostRecord* host_record() override { return &record_; }

 private:
  HostRecord record_;
};

/// Writes down how long it was asked to hold; is released too early the first `failures` times.
class FakeHold final : public QueueHold {
 public:
  explicit FakeHold(std::size_t failures = 0, bool early = false)
      : early_(early), failures_(failures) {}
  void hold(double seconds) override { asked.push_back(seconds); }
  bool ends_early() const override { return early_; }
  bool release() noexcept override {
    ++releases;
    return held_at_first > 0 ? asked.size() <= held_at_first : asked.size() > failures_;
  }

  std::vector<double> asked;
  std::size_t releases = 0;
  std::size_t held_at_first = 0;  ///< so often, and never again; 0 for any time

 private:
  bool early_;
  std::size_t failures_;
};

/// Says a clock for each call that was stamped. A device that recovers begins anew where it idles.
class FakeProbe final : public ClockProbe {
 public:
  explicit FakeProbe(std::function<double(std::size_t)> clock_of, bool recovers = false)
      : clock_of_(std::move(clock_of)), recovers_(recovers) {}
  void stamp() override { ++stamped_; }
  void finish() override { ++finishes; }
  void forget() override {
    EXPECT_LE(stamped_, BatchRunner::max_calls(1));
    stamped_ = 0;
  }
  void pace() override { ++paces; }
  double idle_clock_hz() override {
    calls_ = recovers_ ? 0 : calls_;
    return 2e9;
  }
  void collect(std::span<double> clocks_hz) override {
    EXPECT_EQ(clocks_hz.size(), stamped_);
    stamped_ = 0;
    std::ranges::generate(clocks_hz, [&] { return clock_of_(calls_++); });
  }

  std::size_t finishes = 0;
  std::size_t paces = 0;

 private:
  std::function<double(std::size_t)> clock_of_;
  bool recovers_;
  std::size_t stamped_ = 0;
  std::size_t calls_ = 0;
};

/// A clock that falls until the `settled`th call.
FakeProbe falling_until(std::size_t settled) {
  return FakeProbe(
      [=](std::size_t call) { return 2e9 * std::pow(0.999, std::min(call, settled)); });
}

/// A clock that is at its top for some calls, and again only where the device recovers.
FakeProbe at_top_for(std::size_t calls, bool recovers = false) {
  return FakeProbe([=](std::size_t call) { return call < calls ? 2e9 : 1.5e9; }, recovers);
}

/// A regime that says what it is told to, and writes down how many batches it judged.
class FakeRegime final : public RegimeControl {
 public:
  explicit FakeRegime(std::vector<BatchFate> fates = {}, double gap = 0, double max_idle = 1e9)
      : fates_(std::move(fates)), gap_(gap), max_idle_(max_idle) {}
  double gap_seconds() const override { return gap_; }
  bool exhausted() const override { return idle_seconds() >= max_idle_; }
  BatchFate judge(const RegimeBatch& batch) override {
    seen.push_back(batch);
    return seen.size() <= fates_.size() ? fates_[seen.size() - 1] : BatchFate::kKeep;
  }

  std::vector<RegimeBatch> seen;

 private:
  std::vector<BatchFate> fates_;
  double gap_;
  double max_idle_;
};

Outcome<Regime> outcome_of(const RegimeControl& regime, const SamplerResult& result) {
  std::vector<std::vector<double>> clocks_hz;
  for (const CandidateSamples& samples : result.candidates) {
    clocks_hz.push_back(samples.sm_clocks_hz());
  }
  return regime.outcome(clocks_hz, result.steady);
}

constexpr Warmup kOneCall{.calls = 1, .steady = false};
constexpr Warmup kSteadySoon{.min_steady_seconds = 0};

struct Sampling {
  Warmup warmup = kOneCall;
  StopRule rule{};
  QueueHold* hold = nullptr;
  ClockProbe* probe = nullptr;
  RegimeControl* regime = nullptr;
  HostHooks hooks{};
  std::function<Overhead(bool)> calibrate{};
  Supervision supervision{};
  EarlierCalls* earlier = nullptr;
};

SamplerResult sample(Timer& timer, const std::vector<Callable*>& candidates,
                     const Sampling& sampling) {
  const SamplerSetup setup{.timer = timer,
                           .hold = sampling.hold,
                           .probe = sampling.probe,
                           .regime = sampling.regime,
                           .warmup = sampling.warmup,
                           .rule = sampling.rule,
                           .hooks = sampling.hooks,
                           .calibrate = sampling.calibrate,
                           .supervision = sampling.supervision};
  return sampling.earlier == nullptr ? sample_rounds(candidates, setup)
                                     : sample_rounds(candidates, setup, *sampling.earlier);
}

StopRule count_of(std::size_t samples, std::size_t least = 10) {
  return {.criterion = StopCriterion::kCount, .min_samples = least, .max_samples = samples};
}

class SamplerTest : public testing::Test {
 protected:
  SamplerResult run(const Sampling& sampling) { return sample(timer_, {&a_, &b_}, sampling); }
  SamplerResult run_one(Callable& callable, const Sampling& sampling) {
    return sample(timer_, {&callable}, sampling);
  }
  SamplerResult run_clocked(Callable& callable, FakeProbe& probe, Sampling sampling) {
    timer_.activities_each = 1;
    ClockedCallable clocked(callable, probe);
    sampling.probe = &probe;
    return run_one(clocked, sampling);
  }
  Supervision recording() {
    return {.on_batch = [this](const BatchRecord& record) { records_.push_back(record); }};
  }

  FunctionCallable a_{[this] { order_.push_back('a'); }};
  FunctionCallable b_{[this] { order_.push_back('b'); }};
  FunctionCallable slow_{[] { std::this_thread::sleep_for(milliseconds(2)); }};
  std::vector<char> order_;
  std::vector<BatchRecord> records_;
  FakeTimer timer_{[this](Callable& callable) { return &callable == &b_ ? 2.0 : 1.0; }};
};

TEST_F(SamplerTest, ThrowsFaultyBatchesAwayAndRepeatsThem) {
  timer_.is_faulty = [](std::size_t run) { return run == 4 || run == 5; };
  const SamplerResult result = run({.rule = count_of(200)});
  EXPECT_EQ(result.faulty_batches, 2U);
  EXPECT_EQ(result.fault, "1 launch without its record");
  EXPECT_EQ(result.candidates[0].samples.size(), 200U);
  EXPECT_TRUE(result.candidates[0].discarded.empty());
  EXPECT_EQ(result.of_other_threads, 2 * (timer_.batch_sizes.size() - 2));  // less single calls
}

TEST_F(SamplerTest, GivesUpWhereFaultsBeginLateAndLast) {
  timer_.is_faulty = [](std::size_t run) { return run > 40; };
  EXPECT_THROW(run({.rule = count_of(100'000)}), TraceLost);
  EXPECT_LT(timer_.batch_sizes.size(), 50U);
}

TEST_F(SamplerTest, HandsOnWhatItLearnedBeforeItGaveUp) {
  timer_.is_faulty = [](std::size_t run) { return run > 4; };
  EarlierCalls earlier;
  EXPECT_THROW(run({.rule = {.criterion = StopCriterion::kBudget}, .earlier = &earlier}),
               TraceLost);
  EXPECT_LT(timer_.batch_sizes.size(), 20U);
  ASSERT_EQ(earlier.first_calls.size(), 2U);
  EXPECT_EQ(earlier.count, order_.size());
  EXPECT_GT(earlier.seconds, 0);

  earlier.first_calls = {{0.25, 0.125}, {0.5, 0}};
  FakeTimer other;
  const SamplerResult result =
      sample(other, {&a_, &b_}, {.rule = count_of(10), .earlier = &earlier});
  EXPECT_EQ(result.candidates[0].first_call.seconds, 0.25);
  EXPECT_EQ(result.candidates[0].first_call.compile_seconds, 0.125);
  EXPECT_EQ(result.candidates[1].first_call.seconds, 0.5);
  EXPECT_EQ(result.warmup_calls, earlier.count + 2);
  EXPECT_GE(result.warmup_seconds, earlier.seconds);
}

TEST_F(SamplerTest, IsolatesCallsWhoseWorkNothingOrders) {
  timer_.activities_each = 1;
  timer_.is_unordered = [](std::size_t run) { return run > 6; };
  FakeHold hold;
  const SamplerResult result = run({.rule = count_of(300), .hold = &hold});
  EXPECT_TRUE(timer_.isolated);
  EXPECT_FALSE(result.queue_held);
  EXPECT_TRUE(contains(result.not_held_reason, "idle"));
  EXPECT_EQ(result.candidates[0].samples.size(), 300U);
  EXPECT_EQ(column(result.candidates[0].samples, &Sample::activities).size(), 300U);
  // Four batches that were ordered are another condition; the one that was not is no sample.
  EXPECT_EQ(result.candidates[0].discarded.size(), 10 + 3 * BatchRunner::kMaxRounds);
}

TEST_F(SamplerTest, TellsWhichCandidateIssuesWorkWithoutRecords) {
  timer_.unrecorded_of_first = {"cudaMemPrefetchAsync"};
  const SamplerResult result = run({.rule = count_of(1, 1)});
  EXPECT_EQ(std::ranges::count(result.candidates, std::set<std::string>{"cudaMemPrefetchAsync"},
                               &CandidateSamples::unrecorded),
            1);
}

TEST_F(SamplerTest, CallsEveryCandidateOnceARoundInChangingOrder) {
  const SamplerResult result = run({.rule = {.min_samples = 40}});
  EXPECT_EQ(result.candidates[0].seconds(), std::vector<double>(40, 1.0));
  EXPECT_EQ(result.candidates[1].seconds(), std::vector<double>(40, 2.0));
  EXPECT_EQ(result.stop_reason, StopReason::kSettled);
  const std::vector<char> rounds(order_.begin() + 2, order_.end());  // behind the warm-up
  ASSERT_EQ(rounds.size(), 80U);
  std::size_t a_first = 0;
  for (std::size_t i = 0; i < rounds.size(); i += 2) {
    EXPECT_NE(rounds[i], rounds[i + 1]);
    a_first += rounds[i] == 'a';
  }
  EXPECT_GT(a_first, 10U);
  EXPECT_LT(a_first, 30U);
}

TEST_F(SamplerTest, TakesMoreThanTheLeastInTheFirstBatchWhereCallsAreShort) {
  const auto first_batch = [&](Callable& callable, double seconds, std::size_t most = 10'000) {
    return run_one(callable, {.rule = {.min_samples = 5,
                                       .max_samples = most,
                                       .budget_seconds = 1e-9,
                                       .first_batch_seconds = seconds}})
        .candidates[0]
        .samples.size();
  };
  EXPECT_EQ(first_batch(a_, 10), BatchRunner::kMaxRounds);
  EXPECT_EQ(timer_.batch_sizes, (std::vector<std::size_t>{1, BatchRunner::kMaxRounds}));
  EXPECT_EQ(first_batch(a_, 10, 7), 7U);
  EXPECT_EQ(first_batch(slow_, 1e-3), 5U);
}

TEST_F(SamplerTest, WarmsUpEachCandidate) {
  const SamplerResult result =
      run({.warmup = {.calls = 5, .steady = false}, .rule = {.min_samples = 1}});
  EXPECT_EQ(result.warmup_calls, 10U);
  EXPECT_EQ(std::count(order_.begin(), order_.begin() + 10, 'a'), 5);
  EXPECT_GE(run({.warmup = {.calls = 0, .seconds = 0.01, .steady = false}}).warmup_seconds, 0.02);
  const SamplerResult steady = run_one(a_, {.warmup = {}, .rule = {.max_samples = 10}});
  EXPECT_TRUE(steady.steady);
  EXPECT_GE(steady.warmup_seconds, Warmup{}.min_steady_seconds);
}

TEST_F(SamplerTest, WarmsUpUntilTimesAreSteady) {
  constexpr std::size_t kSettled = 300;
  FakeTimer timer(warming(kSettled));
  const SamplerResult result =
      sample(timer, {&a_}, {.warmup = kSteadySoon, .rule = {.min_samples = 12, .max_samples = 12}});
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.warmup_calls, kSettled);
  EXPECT_EQ(result.warmup_calls + 12, order_.size());
  EXPECT_EQ(result.candidates[0].seconds(), std::vector<double>(12, std::pow(0.99, kSettled)));
}

TEST_F(SamplerTest, TakesSamplesFromTheStretchThatWasSteady) {
  FakeTimer timer(warming(50));
  const SamplerResult result = sample(timer, {&a_}, {.warmup = kSteadySoon});
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.candidates[0].samples.size(), StopRule{}.min_samples);
  EXPECT_EQ(result.warmup_calls + result.candidates[0].samples.size(),
            order_.size());  // no more were needed
  EXPECT_EQ(result.stop_reason, StopReason::kSettled);
}

TEST_F(SamplerTest, LeavesDisturbedSamplesOut) {
  DisturbedTimer timer(3);
  const SamplerResult result = sample(timer, {&a_}, {.rule = {.max_samples = 50, .tolerance = 0}});
  const CandidateSamples& samples = result.candidates.front();
  EXPECT_GE(samples.samples.size(), StopRule{}.min_samples);
  EXPECT_EQ(samples.seconds(), std::vector<double>(samples.samples.size(), 1.0));
  EXPECT_FALSE(samples.discarded.empty());
  EXPECT_EQ(samples.discarded, std::vector<double>(samples.discarded.size(), 3.0));
  EXPECT_EQ(column(samples.samples, &Sample::reading).size(), samples.samples.size());
  EXPECT_EQ(samples.disturbance, "");
  EXPECT_GT(samples.between_runs, 0);

  const SamplerResult of_two = sample(timer, {&a_, &b_}, {.rule = {.max_samples = 50}});
  ASSERT_EQ(of_two.candidates[0].samples.size(), of_two.candidates[1].samples.size());
  EXPECT_EQ(of_two.candidates[0].discarded.size(), of_two.candidates[1].discarded.size());

  const SamplerResult counted = sample(timer, {&a_}, {.rule = count_of(40)});
  EXPECT_EQ(counted.candidates.front().samples.size(), 40U);  // however disturbed
  EXPECT_NE(counted.candidates.front().disturbance, "");
}

TEST_F(SamplerTest, SaysWhatDisturbedAllSamples) {
  DisturbedTimer timer(0);
  const SamplerResult result =
      sample(timer, {&a_}, {.rule = {.max_samples = 50, .budget_seconds = 0.05}});
  EXPECT_EQ(result.candidates.front().seconds(), std::vector<double>(50, 3.0));
  EXPECT_TRUE(contains(result.candidates.front().disturbance, "67 %"));
}

TEST_F(SamplerTest, GivesUpOnTimesThatNeverBecomeSteady) {
  FakeTimer timer(cooling());
  const SamplerResult result =
      sample(timer, {&a_}, {.warmup = {.max_steady_seconds = 0.05}, .rule = {.max_samples = 10}});
  EXPECT_FALSE(result.steady);
  EXPECT_GE(result.warmup_seconds, 0.05);
  EXPECT_LT(result.warmup_seconds, 1);
}

TEST_F(SamplerTest, ForgetsWhatDriftedLongBefore) {
  const Warmup patient{.min_steady_seconds = 0, .max_steady_seconds = 5};
  Warmup forgetful = patient;
  forgetful.max_series_seconds = 0.05;
  FakeTimer timer(cooling());
  const SamplerResult soon = sample(timer, {&a_}, {.warmup = forgetful});
  EXPECT_TRUE(soon.steady);
  EXPECT_GT(soon.warmup_seconds, 0.29);
  EXPECT_LT(soon.warmup_seconds, 0.5);
  EXPECT_DOUBLE_EQ(soon.candidates[0].samples.back().seconds, 1);
  FakeTimer again(cooling());
  // Half of all that was seen must be steady, where calls count and not how long they were kept
  // waiting.
  EXPECT_GT(sample(again, {&a_}, {.warmup = patient}).warmup_seconds, 0.4);
}

TEST_F(SamplerTest, WarmsUpUntilTheClockIsSteadyAndKeepsItForEachSample) {
  constexpr std::size_t kSettled = 400;
  FakeProbe probe = falling_until(kSettled);
  const SamplerResult result =
      run_clocked(a_, probe, {.warmup = kSteadySoon, .rule = {.max_samples = 10}});
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.warmup_calls, kSettled);
  EXPECT_EQ(result.candidates[0].sm_clocks_hz(),
            std::vector<double>(10, 2e9 * std::pow(0.999, kSettled)));
  EXPECT_EQ(probe.finishes, timer_.batch_sizes.size());
}

TEST_F(SamplerTest, HoldsTheQueueForEveryBatch) {
  FakeHold hold;
  const SamplerResult result = run({.rule = {.min_samples = 100}, .hold = &hold});
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(result.not_held_reason, "");
  EXPECT_EQ(hold.asked.size(), timer_.batch_sizes.size() - 2);  // the warm-up is not held
  EXPECT_TRUE(result.candidates[0].discarded.empty());
  timer_.queues = false;  // it waits after each call
  FakeHold not_asked;
  EXPECT_FALSE(run({.hold = &not_asked}).queue_held);
  EXPECT_TRUE(not_asked.asked.empty());
}

TEST_F(SamplerTest, SetsSamplesOfAnUnheldBatchAsideAndHoldsLonger) {
  FakeHold hold(3);
  timer_.activities_each = 1;  // so that no batch is sized by what the host takes
  const SamplerResult result = run({.hold = &hold});
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(result.candidates[0].samples.size(), 10U);
  EXPECT_EQ(result.candidates[0].discarded.size(), 30U);
  EXPECT_EQ(result.candidates[1].discarded, std::vector<double>(30, 2.0));
  EXPECT_GT(hold.asked[3], hold.asked[0]);
}

TEST_F(SamplerTest, TriesSmallerBatchesBeforeItGivesAHoldUp) {
  FakeHold hold(1, /*early=*/true);
  timer_.activities_each = 1;
  EXPECT_TRUE(run({.rule = {.min_samples = 64}, .hold = &hold}).queue_held);
  EXPECT_EQ(BatchRunner::max_calls(2), 128U);
  EXPECT_EQ(timer_.batch_sizes[2], 128U);  // behind two calls of warm-up
  EXPECT_EQ(timer_.batch_sizes[3], 16U);
  EXPECT_EQ(*std::max_element(timer_.batch_sizes.begin() + 3, timer_.batch_sizes.end()), 16U);
}

TEST_F(SamplerTest, LearnsFromBatchesWhatAFirstCallDidNotShow) {
  for (const bool held : {false, true}) {
    timer_.batch_sizes.clear();
    FunctionCallable compiles([first = true]() mutable {
      if (std::exchange(first, false)) {
        std::this_thread::sleep_for(milliseconds(50));
      }
    });
    FakeHold hold(0, /*early=*/true);
    const SamplerResult result =
        run_one(compiles, {.rule = {.min_samples = 300}, .hold = held ? &hold : nullptr});
    EXPECT_GE(result.candidates[0].first_call.seconds, 0.05);
    EXPECT_EQ(timer_.largest_batch(), BatchRunner::max_calls(1));
  }
}

TEST_F(SamplerTest, NeverOverfillsTheQueueWithLaunchesThatTheWarmUpShows) {
  timer_.activities_each = 100;
  FakeHold hold(0, /*early=*/true);
  const Sampling sampling{.rule = {.min_samples = 100}, .hold = &hold};
  run(sampling);
  EXPECT_EQ(timer_.largest_batch(), 8U);  // four rounds of two calls: 800 of 1024 launches

  timer_.batch_sizes.clear();
  timer_.by_one_graph = true;
  run(sampling);
  EXPECT_GT(timer_.largest_batch(), 100U);
}

/// Takes half a millisecond to be made ready.
class Prepared final : public Callable {
 public:
  explicit Prepared(bool by_work) : by_work_(by_work) {}
  void prepare() override { std::this_thread::sleep_for(std::chrono::microseconds(500)); }
  bool prepares_work() const override { return by_work_; }
  void call() override {}

 private:
  bool by_work_;
};

TEST_F(SamplerTest, TakesLaunchesThatNobodySeesIntoAccount) {
  const auto largest_of = [&](bool by_work) {
    timer_.activities_each = 1;
    timer_.batch_sizes.clear();
    Prepared prepared(by_work);
    FakeHold hold(0, /*early=*/true);
    run_one(prepared, {.warmup = {.steady = false}, .rule = {.min_samples = 100}, .hold = &hold});
    return timer_.largest_batch();
  };
  EXPECT_GT(largest_of(false), 8U);
  EXPECT_EQ(largest_of(true), 1U);  // some 500 launches each
}

TEST_F(SamplerTest, GivesTheHoldUpWhereItNeverWorks) {
  FakeHold hold(1'000'000);
  const SamplerResult result = run({.hold = &hold});
  EXPECT_FALSE(result.queue_held);
  EXPECT_TRUE(contains(result.not_held_reason,
                       "3 of 3 batches were still being issued after 0.1 s, the last one of 2 "
                       "calls: a call waits for the GPU"));
  EXPECT_EQ(result.candidates[0].samples.size(), 10U);
  EXPECT_LE(*std::ranges::max_element(hold.asked), 0.1);
}

TEST_F(SamplerTest, DoesNotMixHeldAndUnheldSamples) {
  FakeHold hold(0, /*early=*/true);
  hold.held_at_first = 1;
  std::vector<bool> asked;  // what the method adds
  const SamplerResult result =
      run({.rule = {.min_samples = 100}, .hold = &hold, .calibrate = [&](bool held) {
             asked.push_back(held);
             return Overhead{};
           }});
  EXPECT_FALSE(result.queue_held);
  EXPECT_EQ(result.candidates[0].samples.size(), 100U);
  EXPECT_GE(result.candidates[0].discarded.size(), 64U);
  EXPECT_EQ(asked, (std::vector<bool>{true, false}));
}

TEST_F(SamplerTest, AsksOnceBehindTheFirstCallsWhatTheMethodAdds) {
  std::vector<std::size_t> calls_before;
  run({.warmup = kSteadySoon, .calibrate = [&](bool) {
         calls_before.push_back(order_.size());
         return Overhead{};
       }});
  EXPECT_EQ(calls_before, std::vector<std::size_t>{6});
}

TEST_F(SamplerTest, JudgesSamplesLessWhatTheMethodAdds) {
  FakeTimer timer([this](Callable& callable) { return &callable == &a_ ? 5.00e-6 : 5.03e-6; });
  const auto sample_less = [&](const Overhead& overhead) {
    return sample(timer, {&a_, &b_},
                  {.rule = {.criterion = StopCriterion::kVerdict, .max_samples = 500},
                   .calibrate = [&](bool) { return overhead; }});
  };
  // 1.015 within some 0.01: slower. 1.01, give or take: not to be told.
  const SamplerResult slower = sample_less({3.0e-6, 0.1e-6});
  EXPECT_EQ(slower.stop_reason, StopReason::kSettled);
  EXPECT_EQ(slower.candidates[0].samples[0].seconds, 5.00e-6);  // they stay as they are
  EXPECT_EQ(sample_less({2.0e-6, 0.1e-6}).stop_reason, StopReason::kMaxSamples);
}

TEST_F(SamplerTest, ReleasesTheQueueWhereACandidateThrows) {
  FunctionCallable broken([calls = 0]() mutable {
    if (++calls > 1) {
      throw std::out_of_range("broken");
    }
  });
  FakeHold hold;
  EXPECT_THROW(run_one(broken, {.hold = &hold}), std::out_of_range);
  EXPECT_EQ(hold.asked.size(), 1U);
  EXPECT_EQ(hold.releases, 1U);
}

TEST_F(SamplerTest, IdlesBeforeEachBatchInPiecesThatSignalsEnd) {
  FakeRegime regime({}, 30);
  HostHooks hooks;
  hooks.poll = [polls = 0]() mutable {
    if (++polls == 4) {  // one is behind each of the warm-up's two calls
      throw std::runtime_error("interrupted");
    }
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run({.regime = &regime, .hooks = hooks}), std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(regime.seen.empty());
  EXPECT_EQ(order_.size(), 2U);
}

TEST_F(SamplerTest, WaitsOnlyThroughTheHostsHook) {
  HostHooks hooks;
  std::size_t waits = 0;
  hooks.wait = [&](const std::function<void()>& blocking) {
    ++waits;
    blocking();
  };
  run({.hooks = hooks});
  EXPECT_EQ(waits, timer_.batch_sizes.size());
}

TEST_F(SamplerTest, DoesNotCountIdlingAsSampling) {
  FakeRegime regime({}, 0.05);
  StopRule rule = count_of(256, 128);
  rule.budget_seconds = 1e-9;
  const SamplerResult result = run({.rule = rule, .regime = &regime});
  EXPECT_GE(result.idle_seconds, 4 * 0.05);
  EXPECT_EQ(result.idle_seconds, regime.idle_seconds());
  EXPECT_LT(result.sampling_seconds, 0.05);
  EXPECT_EQ(regime.seen.size(), 4U);
}

TEST_F(SamplerTest, TakesMaxSamplesAtMostAndSpendsItsBudgetWhereTheyAreUnlimited) {
  for (const Warmup& warmup : {kOneCall, Warmup{}}) {  // a steady warm-up gives samples, too
    const auto run_for = [&](std::size_t max_samples, double budget_seconds) {
      return run({.warmup = warmup,
                  .rule = {.criterion = StopCriterion::kBudget,
                           .max_samples = max_samples,
                           .budget_seconds = budget_seconds}});
    };
    const SamplerResult limited = run_for(70, 1e9);
    EXPECT_EQ(limited.candidates[0].samples.size(), 70U);
    EXPECT_EQ(limited.stop_reason, StopReason::kMaxSamples);
    const SamplerResult unlimited = run_for(std::numeric_limits<std::size_t>::max(), 0.01);
    EXPECT_GE(unlimited.candidates[0].samples.size(), 10U);
    EXPECT_EQ(unlimited.stop_reason, StopReason::kBudget);
  }
}

TEST_F(SamplerTest, EndsAsByItsBudgetWhereItIdledForTooLong) {
  FakeRegime regime({}, 0.01, 0.02);
  const StopRule budget{
      .criterion = StopCriterion::kBudget, .min_samples = 100, .budget_seconds = 1e9};
  const SamplerResult result = run({.rule = budget, .regime = &regime});
  EXPECT_EQ(result.candidates[0].samples.size(), 100U);
  EXPECT_EQ(result.stop_reason, StopReason::kBudget);

  FakeRegime again({}, 0.01, 0.02);
  const SamplerResult many = run({.rule = count_of(1'000'000), .regime = &again});
  EXPECT_GE(many.candidates[0].samples.size(), 10U);
  EXPECT_LT(many.candidates[0].samples.size(), 1000U);
  EXPECT_EQ(many.stop_reason, StopReason::kBudget);
  EXPECT_TRUE(many.candidates[0].discarded.empty());
}

constexpr BurstLimits kShortGaps{.first_gap_seconds = 1e-3, .max_gap_seconds = 4e-3};

TEST_F(SamplerTest, KeepsABurstsSamplesWhereTheDeviceNoLongerComesToIt) {
  constexpr std::size_t kAtTop = 1000;
  FakeProbe probe = at_top_for(kAtTop);
  BurstRegime burst(2e9, kShortGaps);
  const SamplerResult result =
      run_clocked(a_, probe, {.rule = count_of(5000, 64), .regime = &burst});
  EXPECT_EQ(outcome_of(burst, result).value, Regime::kBurst);
  const CandidateSamples& samples = result.candidates[0];
  EXPECT_GT(samples.samples.size(), kAtTop / 2);
  const std::vector<double> clocks_hz = samples.sm_clocks_hz();
  EXPECT_GE(
      std::ranges::min(std::vector<double>(clocks_hz.begin(), clocks_hz.begin() + kAtTop / 2)),
      2e9);
}

class AutomaticRegimeTest : public SamplerTest {
 protected:
  /// Of calls that make the clock fall behind so many of them.
  void run_automatically(std::size_t calls_at_top, const Warmup& warmup, std::size_t samples) {
    FakeProbe probe = at_top_for(calls_at_top, /*recovers=*/true);
    AutoRegime regime(2e9, kShortGaps);
    result_ = run_clocked(a_, probe,
                          {.warmup = warmup,
                           .rule = count_of(samples),
                           .regime = &regime,
                           .supervision = recording()});
    outcome_ = outcome_of(regime, result_);
  }

  void expect_bursts_anew(bool warming_up, std::size_t samples) {
    EXPECT_EQ(outcome_.value, Regime::kBurst) << outcome_.reason;
    const auto began_anew = [&](const BatchRecord& record) {
      return record.warming_up == warming_up &&
             record.fate == "set aside with all before it, to begin anew in another regime";
    };
    EXPECT_EQ(std::ranges::count_if(records_, began_anew), 1);
    EXPECT_TRUE(result_.steady);
    EXPECT_EQ(result_.candidates[0].sm_clocks_hz(), std::vector<double>(samples, 2e9));
  }

  SamplerResult result_;
  Outcome<Regime> outcome_;
};

TEST_F(AutomaticRegimeTest, BeginsAnewInBurstsWhereTheClockFallsInTheWarmUp) {
  run_automatically(100, {.min_steady_seconds = 10, .max_steady_seconds = 10}, 1000);
  expect_bursts_anew(true, 1000);
  EXPECT_GE(result_.candidates[0].discarded.size(), 100U);
  EXPECT_GT(result_.idle_seconds, 0);
}

TEST_F(AutomaticRegimeTest, BeginsAnewInBurstsWhereTheClockFallsWhileSampling) {
  run_automatically(5000, kSteadySoon, 6000);
  expect_bursts_anew(false, 6000);
  EXPECT_GE(result_.candidates[0].discarded.size(), 4500U);
  EXPECT_EQ(result_.stop_reason, StopReason::kMaxSamples);
}

TEST_F(SamplerTest, SetsSamplesAsideAsTheRegimeSays) {
  FakeRegime regime({BatchFate::kKeep, BatchFate::kSetAside, BatchFate::kSetEarlierAside});
  const SamplerResult result = run({.rule = count_of(192, 64), .regime = &regime});
  EXPECT_EQ(result.candidates[0].samples.size(), 192U);
  EXPECT_EQ(result.candidates[0].discarded.size(), 128U);  // the first batch and the second
  EXPECT_EQ(regime.seen.size(), 5U);

  FakeRegime given_up({BatchFate::kKeep, BatchFate::kSetAllAside});
  const SamplerResult as_is = run({.rule = count_of(192, 64), .regime = &given_up});
  EXPECT_EQ(as_is.candidates[1].samples.size(), 192U);
  EXPECT_EQ(as_is.candidates[1].discarded, std::vector<double>(128, 2.0));

  FakeRegime of_warmup({BatchFate::kSetAside});
  const SamplerResult warm =
      run_one(a_, {.warmup = kSteadySoon, .rule = {.max_samples = 10}, .regime = &of_warmup});
  EXPECT_TRUE(warm.steady);
  EXPECT_FALSE(warm.candidates[0].discarded.empty());
}

TEST_F(SamplerTest, TellsTheRegimeTheClocksOfEachCandidate) {
  FakeProbe probe = falling_until(0);
  ClockedCallable clocked_a(a_, probe);
  ClockedCallable clocked_b(b_, probe);
  FakeRegime regime({}, 1e-3);
  sample(timer_, {&clocked_a, &clocked_b},
         {.rule = {.min_samples = 12}, .probe = &probe, .regime = &regime});
  ASSERT_FALSE(regime.seen.empty());
  EXPECT_EQ(regime.seen[0].clocks_hz,
            std::vector<std::vector<double>>(2, std::vector<double>(12, 2e9)));
  EXPECT_EQ(regime.seen[0].idle_clock_hz, 2e9);
  EXPECT_GT(regime.seen[0].wall_seconds, 0);
}

TEST_F(SamplerTest, LoadsTheDeviceBeforeEachBatchWithCallsThatAreNotTimed) {
  std::size_t calls = 0;
  FunctionCallable counted([&] {
    ++calls;
    spin(std::chrono::microseconds(10));
  });
  FakeProbe probe = falling_until(1);
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 5, .load_seconds = 0.05});
  const SamplerResult result = run_clocked(counted, probe, {.regime = &sustained});
  const std::size_t samples =
      result.candidates[0].samples.size() + result.candidates[0].discarded.size();
  EXPECT_EQ(outcome_of(sustained, result).value, Regime::kSustained);
  EXPECT_GE(result.warmup_seconds, 0.02);
  EXPECT_EQ(result.warmup_calls + samples, calls);
  EXPECT_GT(calls, 5 * samples);
  EXPECT_GT(probe.paces, timer_.batch_sizes.size());
}

TEST_F(SamplerTest, LongCallsAreLoadEnoughAndNeedNoOthers) {
  FunctionCallable slow([] { std::this_thread::sleep_for(milliseconds(3)); });
  FakeProbe probe = falling_until(1);
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 2, .load_seconds = 0.01});
  EXPECT_TRUE(run_clocked(slow, probe, {.regime = &sustained}).steady);
  EXPECT_EQ(probe.paces, 0U);
}

Supervision within(double seconds) { return {.deadline = Deadline::after(seconds)}; }

TEST_F(SamplerTest, ADeadlineInTheWarmUpLeavesWhatItSampledLast) {
  FakeTimer timer(cooling());  // for longer
  const SamplerResult result = sample(
      timer, {&a_}, {.warmup = {}, .rule = {.min_samples = 10'000}, .supervision = within(0.15)});
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_FALSE(result.steady);
  EXPECT_FALSE(result.candidates[0].samples.empty());
}

TEST_F(SamplerTest, ADeadlineWithoutASampleThrows) {
  EXPECT_THROW(run({.warmup = {.calls = 1'000'000'000}, .supervision = within(0.01)}),
               DeadlineError);
  FakeRegime regime(std::vector(1'000'000, BatchFate::kSetAside));
  EXPECT_THROW(run({.regime = &regime, .supervision = within(0.01)}), DeadlineError);
}

TEST_F(SamplerTest, ADeadlineEndsIdling) {
  FakeRegime regime({}, 30);
  const SamplerResult result =
      run({.rule = {.min_samples = 1000}, .regime = &regime, .supervision = within(0.05)});
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_LT(result.idle_seconds, 5);
}

/// Agrees with the other processes' decisions, which are given: they propose fewer rounds, and
/// their calls take longer.
class FakeAgreement final : public BatchAgreement {
 public:
  double begin(double tick_seconds) override {
    ++begun;
    return tick_seconds;
  }
  std::size_t rounds(std::size_t proposed) override {
    ++proposals;
    return std::min<std::size_t>(proposed, 3);
  }
  void release() override { ++releases; }
  void share(SharedBatch& batch) override {
    for (std::vector<double>& samples : batch.seconds) {
      std::ranges::fill(samples, 5.0);
    }
    if (proposals == faulty_at) {
      batch.fault = "a fault elsewhere";
    }
    batch.elapsed_seconds = static_cast<double>(proposals);
    batch.time_is_up = proposals >= time_is_up_at;
  }

  std::size_t begun = 0;
  std::size_t proposals = 0;
  std::size_t releases = 0;
  std::size_t faulty_at = 0;  ///< the number of a batch; none is the 0th
  std::size_t time_is_up_at = 1000;
};

TEST_F(SamplerTest, DecidesByWhatAllProcessesAgreeOn) {
  FakeAgreement agreement;
  agreement.faulty_at = 2;
  FakeHold hold;
  const SamplerResult result =
      run({.rule = {.criterion = StopCriterion::kBudget,
                    .min_samples = 1,
                    .max_samples = 1000,
                    .budget_seconds = 10},
           .hold = &hold,
           .calibrate = [](bool) -> Overhead { throw std::logic_error("asked"); },
           .supervision = {.agreement = &agreement}});
  EXPECT_EQ(agreement.begun, 1U);
  // Its seconds, and not those of this process, use the budget up.
  EXPECT_EQ(agreement.proposals, 10U);
  EXPECT_EQ(agreement.releases, 10U);
  EXPECT_EQ(result.candidates[0].seconds(), std::vector<double>(25, 5.0));
  EXPECT_EQ(result.candidates[1].seconds(), std::vector<double>(25, 5.0));
  EXPECT_EQ(result.faulty_batches, 1U);
  EXPECT_EQ(result.fault, "a fault elsewhere");
  // A first call, the least samples, and nine batches, one of them thrown away.
  EXPECT_EQ(order_.size(), 2 * (1 + 1 + 27U));
}

TEST_F(SamplerTest, EndsWhereTheTimeOfAnyProcessIsUp) {
  FakeAgreement agreement;
  agreement.time_is_up_at = 4;
  const SamplerResult result =
      run({.rule = count_of(1000, 1), .supervision = {.agreement = &agreement}});
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_EQ(result.candidates[0].samples.size(), 1 + 9U);
}

TEST_F(SamplerTest, TellsOfEachBatch) {
  FakeProbe probe = falling_until(100);
  FakeHold hold(1);
  FakeRegime regime({BatchFate::kKeep, BatchFate::kSetEarlierAside}, 1e-3);
  run_clocked(
      a_, probe,
      {.rule = count_of(128, 64), .hold = &hold, .regime = &regime, .supervision = recording()});
  ASSERT_EQ(records_.size(), 4U);
  EXPECT_EQ(records_[0].held, false);
  EXPECT_EQ(records_[1].held, true);
  EXPECT_EQ(records_[0].fate, "set aside");
  EXPECT_EQ(records_[1].fate, "kept");
  EXPECT_EQ(records_[2].fate, "kept, and all before it set aside");
  for (const BatchRecord& record : records_) {
    EXPECT_FALSE(record.warming_up);
    EXPECT_EQ(record.rounds, 64U);
    EXPECT_GE(record.gap_seconds, 1e-3);
    EXPECT_EQ(record.idle_clock_hz, 2e9);
    EXPECT_GT(record.issue_seconds, 0);
    EXPECT_GE(record.wall_seconds, record.issue_seconds);
  }
  EXPECT_DOUBLE_EQ(records_[0].highest_clock_hz, 2e9 * 0.999);  // behind the warm-up's one call
  EXPECT_DOUBLE_EQ(records_[0].lowest_clock_hz, 2e9 * std::pow(0.999, 64));
  EXPECT_DOUBLE_EQ(records_[3].lowest_clock_hz, 2e9 * std::pow(0.999, 100));
}

/// Works at another of its places with each call.
class Moving final : public Callable {
 public:
  explicit Moving(std::size_t places) : places_(places) {}
  void call() override { place_ = (place_ + 1) % places_; }
  std::size_t distinct_calls() const override { return places_; }
  std::size_t place() const override { return place_; }
  void stay() { places_ = 1; }

 private:
  std::size_t places_;
  std::size_t place_ = 0;
};

/// Says that a call took the place that it was at, and 1000 seconds more with each run.
class PlacesTest : public SamplerTest {
 protected:
  /// The numbers of the runs, as `batches` has to tell them apart, and the places.
  static void expect_true_places(const SamplerResult& result) {
    const CandidateSamples& moving = result.candidates[0];
    const Sample& first = moving.samples.at(0);
    for (const Sample& sample : moving.samples) {
      const double run = std::floor(sample.seconds / 1000);
      ASSERT_TRUE(sample.place.has_value());
      EXPECT_EQ(static_cast<double>(*sample.place), sample.seconds - 1000 * run);
      EXPECT_EQ(static_cast<double>(sample.batch - first.batch),
                run - std::floor(first.seconds / 1000));
    }
  }

  Moving moving_{7};
  double seconds_each_run_ = 1000;
  FakeTimer timer_{[this](Callable& callable) {
    return seconds_each_run_ * static_cast<double>(timer_.batch_sizes.size() - 1) +
           static_cast<double>(callable.place());
  }};
};

TEST_F(PlacesTest, AndBatchesOfEachSampleAreKnown) {
  const SamplerResult result =
      sample(timer_, {&moving_, &a_}, {.warmup = kSteadySoon, .rule = count_of(500)});
  expect_true_places(result);
  const std::vector<Sample>& samples = result.candidates[0].samples;
  EXPECT_GT(samples.back().batch, samples.front().batch);
  EXPECT_TRUE(result.candidates[1].places().empty());  // it has one
}

TEST_F(PlacesTest, ThatAreFewAreNotSettledByManySamples) {
  Moving moving(20);
  seconds_each_run_ = 0;
  const StopRule rule{.max_samples = 1000, .budget_seconds = 60, .tolerance = 0.2};
  EXPECT_EQ(sample(timer_, {&moving}, {.rule = rule}).stop_reason, StopReason::kMaxSamples);
}

TEST_F(PlacesTest, OfWhatIsSetAsideAreForgotten) {
  FakeHold hold(0, /*early=*/true);
  hold.held_at_first = 1;
  const SamplerResult result =
      sample(timer_, {&moving_}, {.rule = {.min_samples = 100}, .hold = &hold});
  EXPECT_FALSE(result.candidates[0].discarded.empty());
  expect_true_places(result);
}

TEST_F(PlacesTest, AreNoneWhereTheFirstCallShowsThatThereIsOneOrCallsAreReplayed) {
  seconds_each_run_ = 0;
  const auto calibrate = [&](bool) {  // behind the first call
    moving_.stay();
    return Overhead{};
  };
  EXPECT_TRUE(sample(timer_, {&moving_}, {.calibrate = calibrate}).candidates[0].places().empty());
  FakeTimer replaying;
  replaying.replays = true;
  Moving replayed(7);
  EXPECT_TRUE(sample(replaying, {&replayed}, {}).candidates[0].places().empty());
}

TEST_F(SamplerTest, RefusesNoCandidatesAndImpossibleRules) {
  EXPECT_THROW(sample(timer_, {}, {}), std::invalid_argument);
  EXPECT_THROW(run({.rule = {.min_samples = 0}}), std::invalid_argument);
  EXPECT_THROW(run({.warmup = {.seconds = -1}}), std::invalid_argument);
}

}  // namespace
}  // namespace convtime
