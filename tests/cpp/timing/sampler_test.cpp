#include "timing/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "timing/batch.h"
#include "timing/conditions/auto_regime.h"
#include "timing/conditions/burst_regime.h"
#include "timing/conditions/sustained_regime.h"
#include "timing/trace/trace_lost.h"

namespace convtime {
namespace {

/// Says that a call took as many seconds as its callable's id, and writes down the calls.
class FakeTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override {
    batch_.assign(calls.begin(), calls.end());
    batch_sizes.push_back(calls.size());
    for (Callable* const callable : calls) {
      callable->call();
    }
  }
  void collect(std::span<double> seconds) override {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i] = this->seconds[batch_[i]];
    }
  }
  CollectionNotes take_notes() override {
    return {is_faulty(batch_sizes.size()) ? "1 launch without its record" : "", 2, unrecorded};
  }
  /// As many in each call as were set, each issued by itself or all of them by one graph.
  std::vector<std::vector<DeviceActivity>> take_activities() override {
    if (activities_each == 0) {
      return {};
    }
    std::vector<DeviceActivity> issued(activities_each);
    for (std::size_t i = 0; i < issued.size(); ++i) {
      issued[i].correlation = by_one_graph ? 1 : static_cast<std::uint32_t>(i);
      issued[i].unordered = is_unordered(batch_sizes.size()) && !isolated;
    }
    return std::vector<std::vector<DeviceActivity>>(batch_.size(), issued);
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return queues; }
  void isolate() override { isolated = true; }

  std::function<bool(std::size_t)> is_faulty = [](std::size_t) { return false; };  // n-th run
  std::function<bool(std::size_t)> is_unordered = is_faulty;
  bool isolated = false;
  std::map<Callable*, double> seconds;
  std::vector<std::size_t> batch_sizes;
  std::vector<std::pair<std::size_t, std::string>> unrecorded;
  bool queues = true;
  std::size_t activities_each = 0;
  bool by_one_graph = false;

 private:
  std::vector<Callable*> batch_;
};

/// Writes down how long it was asked to hold; is released too early the first `failures` times.
class FakeHold final : public QueueHold {
 public:
  explicit FakeHold(std::size_t failures = 0) : failures_(failures) {}
  void hold(double seconds) override { asked.push_back(seconds); }
  bool ends_early() const override { return early; }
  bool release() noexcept override {
    ++releases;
    if (asked.size() == stalls_once_at) {
      return false;
    }
    return failures_after ? asked.size() <= held_at_first : asked.size() > failures_;
  }

  std::vector<double> asked;
  std::size_t releases = 0;
  bool early = false;
  bool failures_after = false;  ///< held for the first held_at_first times, and never again
  std::size_t held_at_first = 0;
  std::size_t stalls_once_at = 0;  ///< the number of a batch; none is the 0th

 private:
  std::size_t failures_;
};

class SamplerTest : public testing::Test {
 protected:
  FunctionCallable a_{[this] { order_.push_back('a'); }};
  FunctionCallable b_{[this] { order_.push_back('b'); }};
  std::vector<Callable*> both_ = {&a_, &b_};
  std::vector<char> order_;
  FakeTimer timer_;

  SamplerTest() { timer_.seconds = {{&a_, 1.0}, {&b_, 2.0}}; }
};

constexpr Warmup kOneCall{.calls = 1, .steady = false};

TEST_F(SamplerTest, ThrowsFaultyBatchesAwayAndRepeatsThem) {
  timer_.is_faulty = [](std::size_t run) { return run == 4 || run == 5; };
  const SamplerResult result = Sampler(timer_, nullptr, nullptr, kOneCall,
                                       {.criterion = StopCriterion::kCount, .max_samples = 200})
                                   .run(both_);
  EXPECT_EQ(result.faulty_batches, 2U);
  EXPECT_EQ(result.fault, "1 launch without its record");
  EXPECT_EQ(result.candidates[0].seconds.size(), 200U);
  EXPECT_TRUE(result.candidates[0].discarded.empty());
  EXPECT_EQ(result.of_other_threads, 2 * (timer_.batch_sizes.size() - 2));  // less single calls
}

TEST_F(SamplerTest, GivesUpWhereFaultsBeginLateAndLast) {
  timer_.is_faulty = [](std::size_t run) { return run > 40; };
  Sampler sampler(timer_, nullptr, nullptr, kOneCall,
                  {.criterion = StopCriterion::kCount, .max_samples = 100'000});
  EXPECT_THROW(sampler.run(both_), TraceLost);
  EXPECT_LT(timer_.batch_sizes.size(), 50U);
}

TEST_F(SamplerTest, GivesUpWhereMostBatchesAreFaulty) {
  timer_.is_faulty = [](std::size_t run) { return run > 4; };
  Sampler sampler(timer_, nullptr, nullptr, kOneCall, {.criterion = StopCriterion::kBudget});
  EXPECT_THROW(sampler.run(both_), TraceLost);
  EXPECT_LT(timer_.batch_sizes.size(), 20U);
}

TEST_F(SamplerTest, HandsOnWhatItLearnedBeforeItGaveUp) {
  timer_.is_faulty = [](std::size_t run) { return run > 4; };
  Sampler sampler(timer_, nullptr, nullptr, kOneCall, {.criterion = StopCriterion::kBudget});
  EarlierCalls earlier;
  EXPECT_THROW(sampler.run(both_, earlier), TraceLost);
  ASSERT_EQ(earlier.first_calls.size(), 2U);
  EXPECT_EQ(earlier.count, order_.size());
  EXPECT_GT(earlier.seconds, 0);

  earlier.first_calls = {{0.25, 0.125}, {0.5, 0}};
  FakeTimer other;
  other.seconds = timer_.seconds;
  const SamplerResult result = Sampler(other, nullptr, nullptr, kOneCall,
                                       {.criterion = StopCriterion::kCount, .max_samples = 10})
                                   .run(both_, earlier);
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
  const SamplerResult result = Sampler(timer_, &hold, nullptr, kOneCall,
                                       {.criterion = StopCriterion::kCount, .max_samples = 300})
                                   .run(both_);
  EXPECT_TRUE(timer_.isolated);
  EXPECT_FALSE(result.queue_held);
  EXPECT_NE(result.not_held_reason.find("idle"), std::string::npos);
  EXPECT_EQ(result.candidates[0].seconds.size(), 300U);
  EXPECT_EQ(result.candidates[0].activities.size(), 300U);
  // Four batches that were ordered are another condition; the one that was not is no sample.
  EXPECT_EQ(result.candidates[0].discarded.size(), 10 + 3 * BatchRunner::kMaxRounds);
}

TEST_F(SamplerTest, TellsWhichCandidateIssuesWorkWithoutRecords) {
  timer_.unrecorded = {{0, "cudaMemPrefetchAsync"}};
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, kOneCall,
              {.criterion = StopCriterion::kCount, .min_samples = 1, .max_samples = 1})
          .run(both_);
  std::size_t with = 0;
  for (const CandidateSamples& samples : result.candidates) {
    with += samples.unrecorded == std::set<std::string>{"cudaMemPrefetchAsync"};
  }
  EXPECT_EQ(with, 1U);
}

TEST_F(SamplerTest, GivesEachCandidateItsOwnSamples) {
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, kOneCall, {.min_samples = 12}).run(both_);
  EXPECT_EQ(result.candidates[0].seconds, std::vector<double>(12, 1.0));
  EXPECT_EQ(result.candidates[1].seconds, std::vector<double>(12, 2.0));
  EXPECT_EQ(result.stop_reason, StopReason::kSettled);
}

TEST_F(SamplerTest, CallsEveryCandidateOnceARoundInChangingOrder) {
  Sampler(timer_, nullptr, nullptr, kOneCall, {.min_samples = 40}).run(both_);
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
  const StopRule rule{.min_samples = 5, .budget_seconds = 1e-9, .first_batch_seconds = 10};
  Callable* const short_call[] = {&a_};
  EXPECT_EQ(Sampler(timer_, nullptr, nullptr, kOneCall, rule)
                .run(short_call)
                .candidates[0]
                .seconds.size(),
            BatchRunner::kMaxRounds);
  EXPECT_EQ(timer_.batch_sizes, (std::vector<std::size_t>{1, BatchRunner::kMaxRounds}));
  StopRule few = rule;
  few.max_samples = 7;
  EXPECT_EQ(
      Sampler(timer_, nullptr, nullptr, kOneCall, few).run(short_call).candidates[0].seconds.size(),
      7U);
}

TEST_F(SamplerTest, TakesTheLeastInTheFirstBatchWhereCallsAreLong) {
  FunctionCallable slow([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  timer_.seconds[&slow] = 1;
  Callable* const candidates[] = {&slow};
  const StopRule rule{.min_samples = 5, .budget_seconds = 1e-9, .first_batch_seconds = 1e-3};
  EXPECT_EQ(Sampler(timer_, nullptr, nullptr, kOneCall, rule)
                .run(candidates)
                .candidates[0]
                .seconds.size(),
            5U);
}

TEST_F(SamplerTest, WarmsUpEachCandidate) {
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, {.calls = 5, .steady = false}, {.min_samples = 1})
          .run(both_);
  EXPECT_EQ(result.warmup_calls, 10U);
  EXPECT_EQ(std::count(order_.begin(), order_.begin() + 10, 'a'), 5);

  const SamplerResult timed =
      Sampler(timer_, nullptr, nullptr, {.calls = 0, .seconds = 0.01, .steady = false},
              {.min_samples = 1})
          .run(both_);
  EXPECT_GE(timed.warmup_seconds, 0.02);
}

TEST_F(SamplerTest, SaysWhatTheFirstCallTook) {
  bool first = true;
  FunctionCallable slow([&] {
    if (std::exchange(first, false)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  timer_.seconds[&slow] = 1;
  Callable* const candidates[] = {&a_, &slow};
  const SamplerResult result = Sampler(timer_, nullptr, nullptr, kOneCall, {}).run(candidates);
  ASSERT_EQ(result.candidates.size(), 2U);
  EXPECT_LT(result.candidates[0].first_call.seconds, 0.01);
  EXPECT_GE(result.candidates[1].first_call.seconds, 0.02);
}

/// Calls get faster by 1 % each until the `settled`th.
class WarmingTimer final : public Timer {
 public:
  explicit WarmingTimer(std::size_t settled) : settled_(settled) {}
  void run(std::span<Callable* const> calls) override { batch_ = calls.size(); }
  void collect(std::span<double> seconds) override {
    for (std::size_t i = 0; i < batch_; ++i) {
      seconds[i] = std::pow(0.99, std::min(calls++, settled_));
    }
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return true; }

  std::size_t calls = 0;

 private:
  std::size_t settled_;
  std::size_t batch_ = 0;
};

TEST_F(SamplerTest, WarmsUpUntilTimesAreSteady) {
  constexpr std::size_t kSettled = 300;
  WarmingTimer timer(kSettled);
  Callable* const candidates[] = {&a_};
  const SamplerResult result = Sampler(timer, nullptr, nullptr, {.min_steady_seconds = 0},
                                       {.min_samples = 12, .max_samples = 12})
                                   .run(candidates);
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.warmup_calls, kSettled);
  EXPECT_EQ(result.warmup_calls + 12, timer.calls);
  EXPECT_EQ(result.candidates[0].seconds, std::vector<double>(12, std::pow(0.99, kSettled)));
}

TEST_F(SamplerTest, TakesSamplesFromTheStretchThatWasSteady) {
  WarmingTimer timer(50);
  Callable* const candidates[] = {&a_};
  const SamplerResult result =
      Sampler(timer, nullptr, nullptr, {.min_steady_seconds = 0}, {}).run(candidates);
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.candidates[0].seconds.size(), StopRule{}.min_samples);
  EXPECT_EQ(result.warmup_calls + result.candidates[0].seconds.size(),
            timer.calls);  // no more were needed
  EXPECT_EQ(result.stop_reason, StopReason::kSettled);
}

TEST_F(SamplerTest, IsNotSteadyBeforeTheWarmUpsLeast) {
  Callable* const candidates[] = {&a_};
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, {}, {.max_samples = 10}).run(candidates);
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.warmup_seconds, Warmup{}.min_steady_seconds);
}

/// Each call takes 0.2 ms; what it says it took falls for the first 0.3 s, by more than a busy
/// machine hides.
class CoolingTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override {
    times_.clear();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
      times_.push_back(1 + 10 * std::max(0.3 - elapsed.count(), 0.0));
    }
  }
  void collect(std::span<double> seconds) override {
    std::copy(times_.begin(), times_.end(), seconds.begin());
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return true; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<double> times_;
};

/// Calls that take 1 s where nothing disturbs them, and 3 s where a thread waits for a core.
class DisturbedTimer final : public Timer {
 public:
  explicit DisturbedTimer(std::size_t undisturbed_every) : every_(undisturbed_every) {
    record_.cores = 2;
  }
  void run(std::span<Callable* const> calls) override {
    first_ = record_.readings.size();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool disturbed = every_ == 0 || record_.readings.size() % every_ != 0;
      record_.readings.push_back(
          {.seconds = disturbed ? 3.0 : 1.0, .longest_wait_seconds = disturbed ? 2.0 : 0.0});
    }
  }
  void collect(std::span<double> seconds) override {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i] = record_.readings[first_ + i].seconds;
    }
  }
  std::vector<std::size_t> take_readings() override {
    std::vector<std::size_t> readings(record_.readings.size() - first_);
    std::iota(readings.begin(), readings.end(), first_);
    return readings;
  }
  const HostRecord* host_record() override { return &record_; }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return false; }

 private:
  std::size_t every_;
  std::size_t first_ = 0;
  HostRecord record_;
};

SamplerResult sample_disturbed(std::size_t undisturbed_every, std::size_t candidates,
                               const StopRule& rule) {
  DisturbedTimer timer(undisturbed_every);
  FunctionCallable a([] {});
  FunctionCallable b([] {});
  Callable* const both[] = {&a, &b};
  return Sampler(timer, nullptr, nullptr, {.steady = false}, rule)
      .run(std::span(both).first(candidates));
}

TEST_F(SamplerTest, LeavesDisturbedSamplesOut) {
  const SamplerResult result = sample_disturbed(3, 1, {.max_samples = 50, .tolerance = 0});
  const CandidateSamples& samples = result.candidates.front();
  EXPECT_GE(samples.seconds.size(), StopRule{}.min_samples);
  EXPECT_EQ(samples.seconds, std::vector<double>(samples.seconds.size(), 1.0));
  EXPECT_FALSE(samples.discarded.empty());
  EXPECT_EQ(samples.discarded, std::vector<double>(samples.discarded.size(), 3.0));
  EXPECT_EQ(samples.readings.size(), samples.seconds.size());
  EXPECT_EQ(result.batches.size(), samples.seconds.size());
  EXPECT_EQ(samples.disturbance, "");
  EXPECT_GT(samples.between_runs, 0);
}

TEST_F(SamplerTest, LeavesWholeRoundsOut) {
  const SamplerResult result = sample_disturbed(3, 2, {.max_samples = 50});
  ASSERT_EQ(result.candidates[0].seconds.size(), result.candidates[1].seconds.size());
  EXPECT_EQ(result.candidates[0].discarded.size(), result.candidates[1].discarded.size());
}

TEST_F(SamplerTest, SaysWhatDisturbedAllSamples) {
  const SamplerResult result = sample_disturbed(0, 1, {.max_samples = 50, .budget_seconds = 0.05});
  const CandidateSamples& samples = result.candidates.front();
  EXPECT_EQ(samples.seconds, std::vector<double>(50, 3.0));
  EXPECT_NE(samples.disturbance.find("67 %"), std::string::npos) << samples.disturbance;
}

TEST_F(SamplerTest, TakesAsManySamplesAsAreAskedForHoweverDisturbed) {
  const SamplerResult result =
      sample_disturbed(3, 1, {.criterion = StopCriterion::kCount, .max_samples = 40});
  EXPECT_EQ(result.candidates.front().seconds.size(), 40U);
  EXPECT_NE(result.candidates.front().disturbance, "");
}

TEST_F(SamplerTest, GivesUpOnTimesThatNeverBecomeSteady) {
  CoolingTimer timer;
  Callable* const candidates[] = {&a_};
  const SamplerResult result =
      Sampler(timer, nullptr, nullptr, {.max_steady_seconds = 0.05}, {.max_samples = 10})
          .run(candidates);
  EXPECT_FALSE(result.steady);
  EXPECT_GE(result.warmup_seconds, 0.05);
  EXPECT_LT(result.warmup_seconds, 1);
}

TEST_F(SamplerTest, ForgetsWhatDriftedLongBefore) {
  Callable* const candidates[] = {&a_};
  const Warmup patient{.min_steady_seconds = 0, .max_steady_seconds = 5};
  Warmup forgetful = patient;
  forgetful.max_series_seconds = 0.05;
  CoolingTimer timer;
  const SamplerResult soon = Sampler(timer, nullptr, nullptr, forgetful, {}).run(candidates);
  EXPECT_TRUE(soon.steady);
  EXPECT_GT(soon.warmup_seconds, 0.29);
  EXPECT_LT(soon.warmup_seconds, 0.5);
  EXPECT_DOUBLE_EQ(soon.candidates[0].seconds.back(), 1);
  CoolingTimer again;
  const SamplerResult late = Sampler(again, nullptr, nullptr, patient, {}).run(candidates);
  // Half of all that was seen must be steady, where calls count and not how long they were kept
  // waiting.
  EXPECT_GT(late.warmup_seconds, 0.4);
}

/// A clock that falls until the `settled`th call, and says so of as many calls as were stamped.
class FallingProbe final : public ClockProbe {
 public:
  explicit FallingProbe(std::size_t settled) : settled_(settled) {}
  void stamp() override { ++stamped_; }
  void finish() override { ++finishes; }
  void forget() override {
    EXPECT_LE(stamped_, Sampler::max_batch(1));
    stamped_ = 0;
  }
  void pace() override { ++paces; }
  double idle_clock_hz() override { return 2e9; }
  void collect(std::span<double> clocks_hz) override {
    EXPECT_EQ(clocks_hz.size(), stamped_);
    stamped_ = 0;
    for (double& clock_hz : clocks_hz) {
      clock_hz = 2e9 * std::pow(0.999, std::min(calls_++, settled_));
    }
  }

  std::size_t finishes = 0;
  std::size_t paces = 0;

 private:
  std::size_t settled_;
  std::size_t stamped_ = 0;
  std::size_t calls_ = 0;
};

/// As timers do: makes each call ready first. Sees one launch of each.
class PreparingTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override {
    batch_sizes.push_back(calls.size());
    for (Callable* const callable : calls) {
      callable->prepare();
      callable->call();
    }
  }
  void collect(std::span<double> seconds) override {
    std::fill(seconds.begin(), seconds.end(), 1.0);
  }
  std::vector<std::vector<DeviceActivity>> take_activities() override {
    return std::vector<std::vector<DeviceActivity>>(batch_sizes.back(),
                                                    std::vector<DeviceActivity>(1));
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return true; }

  std::vector<std::size_t> batch_sizes;
};

TEST_F(SamplerTest, WarmsUpUntilTheClockIsSteadyAndKeepsItForEachSample) {
  constexpr std::size_t kSettled = 400;
  FallingProbe probe(kSettled);
  ClockedCallable clocked(a_, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  const SamplerResult result =
      Sampler(timer, nullptr, &probe, {.min_steady_seconds = 0}, {.max_samples = 10})
          .run(candidates);
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.warmup_calls, kSettled);
  EXPECT_EQ(result.candidates[0].sm_clocks_hz,
            std::vector<double>(10, 2e9 * std::pow(0.999, kSettled)));
  EXPECT_EQ(probe.finishes, timer.batch_sizes.size());
}

TEST_F(SamplerTest, NeverExceedsTheBatchThatTimersPrepareFor) {
  Sampler(timer_, nullptr, nullptr, kOneCall, {.min_samples = 500}).run(both_);
  EXPECT_LE(*std::max_element(timer_.batch_sizes.begin(), timer_.batch_sizes.end()),
            Sampler::max_batch(2));
}

TEST_F(SamplerTest, HoldsTheQueueForEveryBatch) {
  FakeHold hold;
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 100}).run(both_);
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(result.not_held_reason, "");
  EXPECT_EQ(hold.asked.size(), timer_.batch_sizes.size() - 2);  // the warm-up is not held
  EXPECT_TRUE(result.candidates[0].discarded.empty());
}

TEST_F(SamplerTest, SetsSamplesOfAnUnheldBatchAsideAndHoldsLonger) {
  FakeHold hold(3);
  timer_.activities_each = 1;  // so that no batch is sized by what the host takes
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 10}).run(both_);
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(result.candidates[0].seconds.size(), 10U);
  EXPECT_EQ(result.candidates[0].discarded.size(), 30U);
  EXPECT_EQ(result.candidates[1].discarded, std::vector<double>(30, 2.0));
  EXPECT_GT(hold.asked[3], hold.asked[0]);
}

TEST_F(SamplerTest, TriesSmallerBatchesBeforeItGivesAHoldUp) {
  FakeHold hold(1);
  hold.early = true;
  timer_.activities_each = 1;  // so that no batch is sized by what the host takes
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 64}).run(both_);
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(timer_.batch_sizes[2], 128U);  // behind two calls of warm-up
  EXPECT_EQ(timer_.batch_sizes[3], 16U);
  EXPECT_EQ(*std::max_element(timer_.batch_sizes.begin() + 3, timer_.batch_sizes.end()), 16U);
}

FunctionCallable slow_call() {
  return FunctionCallable([] { std::this_thread::sleep_for(std::chrono::milliseconds(21)); });
}

TEST_F(SamplerTest, LosesOneBatchToOneStall) {
  FunctionCallable slow = slow_call();  // too long for batches of more than a round
  Callable* const candidates[] = {&slow};
  timer_.seconds[&slow] = 1;
  FakeHold hold;
  hold.early = true;
  hold.stalls_once_at = 6;
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall,
              {.criterion = StopCriterion::kCount, .min_samples = 9, .max_samples = 9})
          .run(candidates);
  EXPECT_EQ(timer_.batch_sizes.back(), 1U);
  EXPECT_TRUE(result.queue_held);
  EXPECT_EQ(result.not_held_reason, "");
  EXPECT_EQ(result.candidates[0].seconds.size(), 9U);
  EXPECT_EQ(result.candidates[0].discarded.size(), 1U);
}

TEST_F(SamplerTest, LearnsFromBatchesWhatAFirstCallDidNotShow) {
  bool first = true;
  FunctionCallable compiles([&] {
    if (std::exchange(first, false)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  Callable* const candidates[] = {&compiles};
  timer_.seconds[&compiles] = 1;
  for (const bool held : {false, true}) {
    first = true;
    FakeHold hold;
    hold.early = true;
    Sampler(timer_, held ? &hold : nullptr, nullptr, kOneCall, {.min_samples = 300})
        .run(candidates);
    EXPECT_EQ(*std::max_element(timer_.batch_sizes.begin(), timer_.batch_sizes.end()),
              Sampler::max_batch(1));
    timer_.batch_sizes.clear();
  }
}

TEST_F(SamplerTest, NeverOverfillsTheQueueWithLaunchesThatTheWarmUpShows) {
  timer_.activities_each = 100;
  FakeHold hold;
  hold.early = true;
  Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 100}).run(both_);
  const std::size_t largest =
      *std::max_element(timer_.batch_sizes.begin(), timer_.batch_sizes.end());
  EXPECT_LE(largest * 100, 1024U);
  EXPECT_EQ(largest, 8U);  // four rounds of two calls with 100 launches

  timer_.batch_sizes.clear();
  timer_.by_one_graph = true;
  Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 100}).run(both_);
  EXPECT_GT(*std::max_element(timer_.batch_sizes.begin(), timer_.batch_sizes.end()), 100U);
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
  for (const bool by_work : {false, true}) {
    PreparingTimer timer;
    Prepared prepared(by_work);
    Callable* const candidates[] = {&prepared};
    FakeHold hold;
    hold.early = true;
    Sampler(timer, &hold, nullptr, {.calls = 3, .steady = false}, {.min_samples = 100})
        .run(candidates);
    const std::size_t largest =
        *std::max_element(timer.batch_sizes.begin(), timer.batch_sizes.end());
    if (by_work) {
      EXPECT_EQ(largest, 1U);  // some 500 launches each
    } else {
      EXPECT_GT(largest, 8U);
    }
  }
}

TEST_F(SamplerTest, GivesTheHoldUpWhereItNeverWorks) {
  FakeHold hold(1'000'000);
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 10}).run(both_);
  EXPECT_FALSE(result.queue_held);
  EXPECT_NE(result.not_held_reason.find("3 of 3 batches were still being issued after 0.1 s, the "
                                        "last one of 2 calls: a call waits for the GPU"),
            std::string::npos)
      << result.not_held_reason;
  EXPECT_EQ(result.candidates[0].seconds.size(), 10U);
  EXPECT_LE(*std::max_element(hold.asked.begin(), hold.asked.end()), 0.1);
}

TEST_F(SamplerTest, DoesNotMixHeldAndUnheldSamples) {
  FakeHold hold;
  hold.early = true;
  hold.held_at_first = 1;
  hold.failures_after = true;
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 100}).run(both_);
  EXPECT_FALSE(result.queue_held);
  EXPECT_EQ(result.candidates[0].seconds.size(), 100U);
  EXPECT_GE(result.candidates[0].discarded.size(), 64U);
}

TEST_F(SamplerTest, AsksOnceBehindTheFirstCallsWhatTheMethodAdds) {
  std::vector<std::size_t> calls_before;
  Sampler(timer_, nullptr, nullptr, {.calls = 3, .min_steady_seconds = 0}, {}, {}, nullptr,
          [&](bool) {
            calls_before.push_back(order_.size());
            return Overhead{};
          })
      .run(both_);
  EXPECT_EQ(calls_before, std::vector<std::size_t>{6});
}

TEST_F(SamplerTest, AsksAnewWhereTheHoldIsGivenUp) {
  FakeHold hold;
  hold.early = true;
  hold.held_at_first = 1;
  hold.failures_after = true;
  std::vector<bool> asked;
  Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 100}, {}, nullptr, [&](bool held) {
    asked.push_back(held);
    return Overhead{};
  }).run(both_);
  EXPECT_EQ(asked, (std::vector<bool>{true, false}));
}

TEST_F(SamplerTest, JudgesSamplesLessWhatTheMethodAdds) {
  timer_.seconds = {{&a_, 5.00e-6}, {&b_, 5.03e-6}};
  const auto sample = [&](const Overhead& overhead) {
    return Sampler(timer_, nullptr, nullptr, kOneCall,
                   {.criterion = StopCriterion::kVerdict, .max_samples = 500}, {}, nullptr,
                   [&](bool) { return overhead; })
        .run(both_);
  };
  // 1.015 within some 0.01: slower. 1.01, give or take: not to be told.
  EXPECT_EQ(sample({3.0e-6, 0.1e-6}).stop_reason, StopReason::kSettled);
  EXPECT_EQ(sample({2.0e-6, 0.1e-6}).stop_reason, StopReason::kMaxSamples);
  EXPECT_EQ(sample({3.0e-6, 0.1e-6}).candidates[0].seconds[0], 5.00e-6);  // they stay as they are
}

TEST_F(SamplerTest, DoesNotHoldForTimersThatWaitAfterEachCall) {
  timer_.queues = false;
  FakeHold hold;
  const SamplerResult result =
      Sampler(timer_, &hold, nullptr, kOneCall, {.min_samples = 10}).run(both_);
  EXPECT_FALSE(result.queue_held);
  EXPECT_TRUE(hold.asked.empty());
}

TEST_F(SamplerTest, PassesACandidatesExceptionOn) {
  FunctionCallable broken([] { throw std::out_of_range("broken"); });
  Callable* const candidates[] = {&broken};
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, kOneCall, {}).run(candidates), std::out_of_range);
}

TEST_F(SamplerTest, ReleasesTheQueueWhereACandidateThrows) {
  int calls = 0;
  FunctionCallable broken([&] {
    if (++calls > 1) {
      throw std::out_of_range("broken");
    }
  });
  Callable* const candidates[] = {&broken};
  timer_.seconds[&broken] = 1.0;
  FakeHold hold;
  EXPECT_THROW(Sampler(timer_, &hold, nullptr, kOneCall, {}).run(candidates), std::out_of_range);
  EXPECT_EQ(hold.asked.size(), 1U);
  EXPECT_EQ(hold.releases, 1U);
}

TEST_F(SamplerTest, EndsWhenTheHostAsksForIt) {
  HostHooks hooks;
  int polls = 0;
  hooks.poll = [&] {
    if (++polls == 5) {
      throw std::runtime_error("interrupted");
    }
  };
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, {.calls = 100}, {}, hooks).run(both_),
               std::runtime_error);
  EXPECT_EQ(polls, 5);
}

TEST_F(SamplerTest, WaitsOnlyThroughTheHostsHook) {
  HostHooks hooks;
  std::size_t waits = 0;
  hooks.wait = [&](const std::function<void()>& blocking) {
    ++waits;
    blocking();
  };
  Sampler(timer_, nullptr, nullptr, kOneCall, {}, hooks).run(both_);
  EXPECT_EQ(waits, timer_.batch_sizes.size());
}

Outcome<Regime> outcome_of(const RegimeControl& regime, const SamplerResult& result) {
  std::vector<std::vector<double>> clocks_hz;
  for (const CandidateSamples& samples : result.candidates) {
    clocks_hz.push_back(samples.sm_clocks_hz);
  }
  return regime.outcome(clocks_hz, result.steady);
}

/// A regime that says what it is told to, and writes down how many batches it judged.
class FakeRegime final : public RegimeControl {
 public:
  double gap_seconds() const override { return gap; }
  bool exhausted() const override { return idle_seconds() >= max_idle; }
  BatchFate judge(const RegimeBatch& batch) override {
    seen.push_back(batch);
    return seen.size() <= fates.size() ? fates[seen.size() - 1] : BatchFate::kKeep;
  }

  double gap = 0;
  double max_idle = 1e9;
  std::vector<BatchFate> fates;
  std::vector<RegimeBatch> seen;
};

TEST_F(SamplerTest, IdlesBeforeEachBatchInPiecesThatSignalsEnd) {
  HostHooks hooks;
  int polls = 0;
  hooks.poll = [&] {
    if (++polls == 4) {  // one is behind each of the warm-up's two calls
      throw std::runtime_error("interrupted");
    }
  };
  FakeRegime regime;
  regime.gap = 30;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, kOneCall, {}, hooks, &regime).run(both_),
               std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(regime.seen.empty());
}

TEST_F(SamplerTest, DoesNotCountIdlingAsSampling) {
  FakeRegime regime;
  regime.gap = 0.05;
  const SamplerResult result = Sampler(timer_, nullptr, nullptr, kOneCall,
                                       {.criterion = StopCriterion::kCount,
                                        .min_samples = 128,
                                        .max_samples = 256,
                                        .budget_seconds = 1e-9},
                                       {}, &regime)
                                   .run(both_);
  EXPECT_GE(result.idle_seconds, 4 * 0.05);
  EXPECT_EQ(result.idle_seconds, regime.idle_seconds());
  EXPECT_LT(result.sampling_seconds, 0.05);
  EXPECT_EQ(regime.seen.size(), 4U);
}

TEST_F(SamplerTest, TakesMaxSamplesAtMostWhateverTheCriterion) {
  for (const Warmup& warmup : {kOneCall, Warmup{}}) {  // a steady warm-up gives samples, too
    const SamplerResult result = Sampler(timer_, nullptr, nullptr, warmup,
                                         {.criterion = StopCriterion::kBudget,
                                          .min_samples = 5,
                                          .max_samples = 70,
                                          .budget_seconds = 1e9})
                                     .run(both_);
    EXPECT_EQ(result.candidates[0].seconds.size(), 70U);
    EXPECT_EQ(result.stop_reason, StopReason::kMaxSamples);
  }
}

TEST_F(SamplerTest, SpendsItsBudgetWhereTheNumberOfSamplesIsUnlimited) {
  for (const Warmup& warmup : {kOneCall, Warmup{}}) {
    const SamplerResult result = Sampler(timer_, nullptr, nullptr, warmup,
                                         {.criterion = StopCriterion::kBudget,
                                          .max_samples = std::numeric_limits<std::size_t>::max(),
                                          .budget_seconds = 0.01})
                                     .run(both_);
    EXPECT_EQ(result.stop_reason, StopReason::kBudget);
    EXPECT_GE(result.candidates[0].seconds.size(), 10U);
  }
}

TEST_F(SamplerTest, EndsAsByItsBudgetWhereItIdledForTooLong) {
  FakeRegime regime;
  regime.gap = 0.01;
  regime.max_idle = 0.02;
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, kOneCall,
              {.criterion = StopCriterion::kBudget, .min_samples = 100, .budget_seconds = 1e9}, {},
              &regime)
          .run(both_);
  EXPECT_EQ(result.candidates[0].seconds.size(), 100U);
  EXPECT_EQ(result.stop_reason, StopReason::kBudget);
}

TEST_F(SamplerTest, EndsWhereItIdledForTooLongHoweverManySamplesAreAskedFor) {
  FakeRegime regime;
  regime.gap = 0.01;
  regime.max_idle = 0.02;
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, kOneCall,
              {.criterion = StopCriterion::kCount, .min_samples = 10, .max_samples = 1'000'000}, {},
              &regime)
          .run(both_);
  EXPECT_GE(result.candidates[0].seconds.size(), 10U);
  EXPECT_LT(result.candidates[0].seconds.size(), 1000U);
  EXPECT_EQ(result.stop_reason, StopReason::kBudget);
  EXPECT_TRUE(result.candidates[0].discarded.empty());
}

/// A clock that is at its top for some calls, and never again.
class FailingProbe final : public ClockProbe {
 public:
  explicit FailingProbe(std::size_t calls_at_top) : calls_at_top_(calls_at_top) {}
  void stamp() override {}
  void finish() override {}
  void forget() override {}
  void pace() override {}
  double idle_clock_hz() override { return 2e9; }
  void collect(std::span<double> clocks_hz) override {
    for (double& clock_hz : clocks_hz) {
      clock_hz = calls_++ < calls_at_top_ ? 2e9 : 1.5e9;
    }
  }

 private:
  std::size_t calls_at_top_;
  std::size_t calls_ = 0;
};

TEST_F(SamplerTest, KeepsABurstsSamplesWhereTheDeviceNoLongerComesToIt) {
  constexpr std::size_t kAtTop = 1000;
  FailingProbe probe(kAtTop);
  ClockedCallable clocked(a_, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  BurstRegime burst(2e9, {.first_gap_seconds = 1e-3, .max_gap_seconds = 4e-3});
  const SamplerResult result =
      Sampler(timer, nullptr, &probe, kOneCall,
              {.criterion = StopCriterion::kCount, .min_samples = 64, .max_samples = 5000}, {},
              &burst)
          .run(candidates);
  EXPECT_EQ(outcome_of(burst, result).value, Regime::kBurst);
  EXPECT_GT(result.candidates[0].seconds.size(), kAtTop / 2);
  EXPECT_GE(*std::min_element(result.candidates[0].sm_clocks_hz.begin(),
                              result.candidates[0].sm_clocks_hz.begin() + kAtTop / 2),
            2e9);
}

/// A clock that falls behind so many calls without a rest.
class TiringProbe final : public ClockProbe {
 public:
  explicit TiringProbe(std::size_t calls_at_top) : calls_at_top_(calls_at_top) {}
  void stamp() override {}
  void finish() override {}
  void forget() override {}
  void pace() override {}
  double idle_clock_hz() override {
    calls_ = 0;
    return 2e9;
  }
  void collect(std::span<double> clocks_hz) override {
    for (double& clock_hz : clocks_hz) {
      clock_hz = calls_++ < calls_at_top_ ? 2e9 : 1.5e9;
    }
  }

 private:
  std::size_t calls_at_top_;
  std::size_t calls_ = 0;
};

struct AutomaticRun {
  SamplerResult result;
  Outcome<Regime> outcome;
  std::vector<BatchRecord> records;
};

/// Of calls that make the clock fall behind so many of them.
AutomaticRun sample_automatically(Callable& callable, std::size_t calls_at_top,
                                  const Warmup& warmup, std::size_t samples) {
  TiringProbe probe(calls_at_top);
  ClockedCallable clocked(callable, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  AutoRegime regime(2e9, {.first_gap_seconds = 1e-3, .max_gap_seconds = 4e-3});
  Sampler sampler(timer, nullptr, &probe, warmup,
                  {.criterion = StopCriterion::kCount, .max_samples = samples}, {}, &regime);
  AutomaticRun run;
  sampler.supervise(
      {.on_batch = [&](const BatchRecord& record) { run.records.push_back(record); }});
  run.result = sampler.run(candidates);
  run.outcome = outcome_of(regime, run.result);
  return run;
}

std::size_t count_anew(const std::vector<BatchRecord>& records, bool warming_up) {
  return static_cast<std::size_t>(
      std::count_if(records.begin(), records.end(), [&](const BatchRecord& record) {
        return record.warming_up == warming_up &&
               record.fate == "set aside with all before it, to begin anew in another regime";
      }));
}

TEST_F(SamplerTest, BeginsAnewInBurstsWhereTheClockFallsInTheWarmUp) {
  const AutomaticRun run =
      sample_automatically(a_, 100, {.min_steady_seconds = 10, .max_steady_seconds = 10}, 1000);
  EXPECT_EQ(run.outcome.value, Regime::kBurst) << run.outcome.reason;
  EXPECT_EQ(count_anew(run.records, true), 1U);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.candidates[0].sm_clocks_hz, std::vector<double>(1000, 2e9));
  EXPECT_GE(run.result.candidates[0].discarded.size(), 100U);
  EXPECT_GT(run.result.idle_seconds, 0);
}

TEST_F(SamplerTest, BeginsAnewInBurstsWhereTheClockFallsWhileSampling) {
  const AutomaticRun run = sample_automatically(a_, 5000, {.min_steady_seconds = 0}, 6000);
  EXPECT_EQ(run.outcome.value, Regime::kBurst) << run.outcome.reason;
  EXPECT_EQ(count_anew(run.records, false), 1U);
  EXPECT_TRUE(run.result.steady);
  EXPECT_EQ(run.result.candidates[0].sm_clocks_hz, std::vector<double>(6000, 2e9));
  EXPECT_GE(run.result.candidates[0].discarded.size(), 4500U);
  EXPECT_EQ(run.result.stop_reason, StopReason::kMaxSamples);
}

TEST_F(SamplerTest, LeavesTheDeviceAloneWhereTheClockStaysUp) {
  const AutomaticRun run = sample_automatically(a_, 1'000'000, {.min_steady_seconds = 0}, 5000);
  EXPECT_EQ(run.outcome.value, Regime::kAsIs);
  EXPECT_EQ(run.result.idle_seconds, 0);
  EXPECT_TRUE(run.result.candidates[0].discarded.empty());
}

TEST_F(SamplerTest, SetsSamplesAsideAsTheRegimeSays) {
  FakeRegime regime;
  regime.fates = {BatchFate::kKeep, BatchFate::kSetAside, BatchFate::kSetEarlierAside,
                  BatchFate::kKeep};
  const StopRule rule{.criterion = StopCriterion::kCount, .min_samples = 64, .max_samples = 192};
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, kOneCall, rule, {}, &regime).run(both_);
  EXPECT_EQ(result.candidates[0].seconds.size(), 192U);
  EXPECT_EQ(result.candidates[0].discarded.size(), 128U);  // the first batch and the second
  EXPECT_EQ(regime.seen.size(), 5U);

  FakeRegime given_up;
  given_up.fates = {BatchFate::kKeep, BatchFate::kSetAllAside};
  const SamplerResult as_is =
      Sampler(timer_, nullptr, nullptr, kOneCall, rule, {}, &given_up).run(both_);
  EXPECT_EQ(as_is.candidates[1].seconds.size(), 192U);
  EXPECT_EQ(as_is.candidates[1].discarded, std::vector<double>(128, 2.0));
}

TEST_F(SamplerTest, KeepsWhatTheRegimeSetAsideInTheWarmUp) {
  FakeRegime regime;
  regime.fates = {BatchFate::kSetAside};
  Callable* const candidates[] = {&a_};
  const SamplerResult result =
      Sampler(timer_, nullptr, nullptr, {.min_steady_seconds = 0}, {.max_samples = 10}, {}, &regime)
          .run(candidates);
  EXPECT_TRUE(result.steady);
  EXPECT_FALSE(result.candidates[0].discarded.empty());
}

TEST_F(SamplerTest, TellsTheRegimeTheClocksOfEachCandidate) {
  FallingProbe probe(0);
  ClockedCallable clocked_a(a_, probe);
  ClockedCallable clocked_b(b_, probe);
  Callable* const candidates[] = {&clocked_a, &clocked_b};
  PreparingTimer timer;
  FakeRegime regime;
  regime.gap = 1e-3;
  Sampler(timer, nullptr, &probe, kOneCall, {.min_samples = 12}, {}, &regime).run(candidates);
  ASSERT_FALSE(regime.seen.empty());
  EXPECT_EQ(regime.seen[0].clocks_hz,
            std::vector<std::vector<double>>(2, std::vector<double>(12, 2e9)));
  EXPECT_EQ(regime.seen[0].idle_clock_hz, 2e9);
  EXPECT_GT(regime.seen[0].wall_seconds, 0);
}

TEST_F(SamplerTest, SamplesARestedDeviceInBursts) {
  FallingProbe probe(0);
  ClockedCallable clocked(a_, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  BurstRegime burst(2e9, {.first_gap_seconds = 4e-3});
  const SamplerResult result =
      Sampler(timer, nullptr, &probe, kOneCall, {.max_samples = 300}, {}, &burst).run(candidates);
  EXPECT_EQ(outcome_of(burst, result).value, Regime::kBurst);
  EXPECT_TRUE(result.steady);
  EXPECT_GE(result.candidates[0].seconds.size(), 20U);
  EXPECT_GE(result.idle_seconds, 3 * 2e-3);
  EXPECT_TRUE(result.candidates[0].discarded.empty());
}

TEST_F(SamplerTest, GoesOnAsItIsWhereABurstCannotBeReached) {
  FallingProbe probe(1'000'000'000);  // the clock falls with each call, for ever
  ClockedCallable clocked(a_, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  BurstRegime burst(2e9, {.first_gap_seconds = 1e-3, .max_gap_seconds = 4e-3});
  const SamplerResult result =
      Sampler(timer, nullptr, &probe, kOneCall,
              {.criterion = StopCriterion::kCount, .min_samples = 64, .max_samples = 640}, {},
              &burst)
          .run(candidates);
  EXPECT_EQ(result.candidates[0].seconds.size(), 640U);
  EXPECT_GE(result.candidates[0].discarded.size(), 5U);
  EXPECT_EQ(outcome_of(burst, result).value, Regime::kAsIs);
}

SamplerResult sample_clocked(Callable& callable, ClockProbe& probe, Timer& timer,
                             RegimeControl& regime) {
  ClockedCallable clocked(callable, probe);
  Callable* const candidates[] = {&clocked};
  return Sampler(timer, nullptr, &probe, kOneCall, {}, {}, &regime).run(candidates);
}

TEST_F(SamplerTest, SamplesUnderTheLoadThatMadeTheDeviceSteady) {
  FallingProbe probe(400);
  PreparingTimer timer;
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 5});
  const SamplerResult result = sample_clocked(a_, probe, timer, sustained);
  EXPECT_EQ(outcome_of(sustained, result).value, Regime::kSustained);
  EXPECT_GE(result.warmup_seconds, 0.02);
  EXPECT_EQ(result.idle_seconds, 0);
  EXPECT_DOUBLE_EQ(result.candidates[0].sm_clocks_hz.back(), 2e9 * std::pow(0.999, 400));
}

TEST_F(SamplerTest, LoadsTheDeviceBeforeEachBatchWithCallsThatAreNotTimed) {
  std::size_t calls = 0;
  FunctionCallable counted([&] {
    ++calls;
    // Not a sleep, which takes a busy machine a hundred times as long.
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(10);
    while (std::chrono::steady_clock::now() < end) {
    }
  });
  FallingProbe probe(1);
  PreparingTimer timer;
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 5, .load_seconds = 0.05});
  const SamplerResult result = sample_clocked(counted, probe, timer, sustained);
  const std::size_t samples =
      result.candidates[0].seconds.size() + result.candidates[0].discarded.size();
  EXPECT_EQ(result.warmup_calls + samples, calls);
  EXPECT_GT(calls, 5 * samples);
  EXPECT_GT(probe.paces, timer.batch_sizes.size());
}

TEST_F(SamplerTest, LongCallsAreLoadEnoughAndNeedNoOthers) {
  FunctionCallable slow([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  FallingProbe probe(1);
  PreparingTimer timer;
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 2, .load_seconds = 0.01});
  const SamplerResult result = sample_clocked(slow, probe, timer, sustained);
  EXPECT_TRUE(result.steady);
  EXPECT_EQ(probe.paces, 0U);
}

TEST_F(SamplerTest, SaysWhereLoadNeverMakesTheDeviceSteady) {
  CoolingTimer timer;
  Callable* const candidates[] = {&a_};
  SustainedRegime sustained({.min_seconds = 0.02, .max_seconds = 0.1});
  const SamplerResult result =
      Sampler(timer, nullptr, nullptr, kOneCall, {.max_samples = 10}, {}, &sustained)
          .run(candidates);
  EXPECT_FALSE(result.steady);
  EXPECT_EQ(result.candidates[0].seconds.size(), 10U);
  EXPECT_LT(result.warmup_seconds, 2);
  EXPECT_EQ(outcome_of(sustained, result).value, Regime::kAsIs);
}

TEST_F(SamplerTest, EndsAtADeadlineWithTheSamplesThatThereAre) {
  FunctionCallable slow([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  timer_.seconds[&slow] = 1;
  Callable* const candidates[] = {&slow};
  Sampler sampler(timer_, nullptr, nullptr, kOneCall,
                  {.criterion = StopCriterion::kCount, .min_samples = 1000, .max_samples = 1000});
  sampler.supervise({.deadline = Deadline::after(0.1)});
  const SamplerResult result = sampler.run(candidates);
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_FALSE(result.candidates[0].seconds.empty());
  EXPECT_LT(result.candidates[0].seconds.size(), 100U);
}

TEST_F(SamplerTest, ADeadlineInTheWarmUpLeavesWhatItSampledLast) {
  CoolingTimer timer;  // that drifts for longer
  Callable* const candidates[] = {&a_};
  Sampler sampler(timer, nullptr, nullptr, {}, {.min_samples = 10'000});
  sampler.supervise({.deadline = Deadline::after(0.15)});
  const SamplerResult result = sampler.run(candidates);
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_FALSE(result.steady);
  EXPECT_FALSE(result.candidates[0].seconds.empty());
}

TEST_F(SamplerTest, ADeadlineWithoutASampleThrows) {
  Sampler sampler(timer_, nullptr, nullptr, {.calls = 1'000'000'000}, {});
  sampler.supervise({.deadline = Deadline::after(0.01)});
  EXPECT_THROW(sampler.run(both_), DeadlineError);
  FakeRegime regime;  // that sets everything aside
  regime.fates.assign(1'000'000, BatchFate::kSetAside);
  Sampler discarding(timer_, nullptr, nullptr, kOneCall, {}, {}, &regime);
  discarding.supervise({.deadline = Deadline::after(0.01)});
  EXPECT_THROW(discarding.run(both_), DeadlineError);
}

TEST_F(SamplerTest, ADeadlineEndsIdling) {
  FakeRegime regime;
  regime.gap = 30;
  Sampler sampler(timer_, nullptr, nullptr, kOneCall, {.min_samples = 1000}, {}, &regime);
  sampler.supervise({.deadline = Deadline::after(0.05)});
  const SamplerResult result = sampler.run(both_);
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_LT(result.idle_seconds, 5);
}

/// Agrees with the other processes' decisions, which are given: they propose fewer rounds, and
/// their calls take longer.
class FakeAccord final : public Accord {
 public:
  double begin(double tick_seconds) override {
    ++begun;
    return tick_seconds;
  }
  std::size_t rounds(std::size_t proposed) override {
    proposals.push_back(proposed);
    return std::min(proposed, most_rounds);
  }
  void release() override { ++releases; }
  void share(SharedBatch& batch) override {
    for (std::vector<double>& samples : batch.seconds) {
      std::fill(samples.begin(), samples.end(), slowest);
    }
    if (proposals.size() == faulty_at) {
      batch.fault = "a fault elsewhere";
    }
    batch.elapsed_seconds = static_cast<double>(proposals.size());
    batch.time_is_up = proposals.size() >= time_is_up_at;
  }

  std::size_t begun = 0;
  std::vector<std::size_t> proposals;
  std::size_t releases = 0;
  std::size_t most_rounds = 3;
  double slowest = 5.0;
  std::size_t faulty_at = 0;  ///< the number of a batch; none is the 0th
  std::size_t time_is_up_at = 1000;
};

TEST_F(SamplerTest, DecidesByWhatAllProcessesAgreeOn) {
  FakeAccord accord;
  accord.faulty_at = 2;
  FakeHold hold;
  Sampler sampler(timer_, &hold, nullptr, kOneCall,
                  {.criterion = StopCriterion::kBudget,
                   .min_samples = 1,
                   .max_samples = 1000,
                   .budget_seconds = 10},
                  {}, nullptr, [](bool) -> Overhead { throw std::logic_error("asked"); });
  sampler.supervise({.accord = &accord});
  const SamplerResult result = sampler.run(both_);
  EXPECT_EQ(accord.begun, 1U);
  // Its seconds, and not those of this process, use the budget up.
  EXPECT_EQ(accord.proposals.size(), 10U);
  EXPECT_EQ(accord.releases, 10U);
  EXPECT_EQ(result.candidates[0].seconds, std::vector<double>(25, 5.0));
  EXPECT_EQ(result.candidates[1].seconds, std::vector<double>(25, 5.0));
  EXPECT_EQ(result.faulty_batches, 1U);
  EXPECT_EQ(result.fault, "a fault elsewhere");
  // A first call, the least samples, and nine batches, one of them thrown away.
  EXPECT_EQ(order_.size(), 2 * (1 + 1 + 27U));
}

TEST_F(SamplerTest, EndsWhereTheTimeOfAnyProcessIsUp) {
  FakeAccord accord;
  accord.time_is_up_at = 4;
  Sampler sampler(timer_, nullptr, nullptr, kOneCall,
                  {.criterion = StopCriterion::kCount, .min_samples = 1, .max_samples = 1000});
  sampler.supervise({.accord = &accord});
  const SamplerResult result = sampler.run(both_);
  EXPECT_EQ(result.stop_reason, StopReason::kTimeout);
  EXPECT_EQ(result.candidates[0].seconds.size(), 1 + 9U);
}

TEST_F(SamplerTest, TellsOfEachBatch) {
  FallingProbe probe(100);
  ClockedCallable clocked(a_, probe);
  Callable* const candidates[] = {&clocked};
  PreparingTimer timer;
  FakeHold hold(1);
  FakeRegime regime;
  regime.gap = 1e-3;
  regime.fates = {BatchFate::kKeep, BatchFate::kSetEarlierAside};
  std::vector<BatchRecord> records;
  Sampler sampler(timer, &hold, &probe, kOneCall,
                  {.criterion = StopCriterion::kCount, .min_samples = 64, .max_samples = 128}, {},
                  &regime);
  sampler.supervise({.on_batch = [&](const BatchRecord& record) { records.push_back(record); }});
  sampler.run(candidates);
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records[0].held, false);
  EXPECT_EQ(records[1].held, true);
  EXPECT_EQ(records[0].fate, "set aside");
  EXPECT_EQ(records[1].fate, "kept");
  EXPECT_EQ(records[2].fate, "kept, and all before it set aside");
  for (const BatchRecord& record : records) {
    EXPECT_FALSE(record.warming_up);
    EXPECT_EQ(record.rounds, 64U);
    EXPECT_GE(record.gap_seconds, 1e-3);
    EXPECT_EQ(record.idle_clock_hz, 2e9);
    EXPECT_GT(record.issue_seconds, 0);
    EXPECT_GE(record.wall_seconds, record.issue_seconds);
  }
  EXPECT_DOUBLE_EQ(records[0].highest_clock_hz, 2e9 * 0.999);  // behind the warm-up's one call
  EXPECT_DOUBLE_EQ(records[0].lowest_clock_hz, 2e9 * std::pow(0.999, 64));
  EXPECT_DOUBLE_EQ(records[3].lowest_clock_hz, 2e9 * std::pow(0.999, 100));
}

TEST_F(SamplerTest, ARecordSaysWhereNothingIsHeldAndNoClockIsKnown) {
  std::vector<BatchRecord> records;
  Sampler sampler(timer_, nullptr, nullptr, {.min_steady_seconds = 0}, {.min_samples = 1000});
  sampler.supervise({.on_batch = [&](const BatchRecord& record) { records.push_back(record); }});
  sampler.run(both_);
  ASSERT_FALSE(records.empty());
  EXPECT_TRUE(records.front().warming_up);
  EXPECT_FALSE(records.back().warming_up);
  EXPECT_FALSE(records.front().held.has_value());
  EXPECT_TRUE(std::isnan(records.front().lowest_clock_hz));
  EXPECT_TRUE(std::isnan(records.front().idle_clock_hz));
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

/// Says that a call took the place that it was at, and so much more with each run.
class PlaceTimer final : public Timer {
 public:
  explicit PlaceTimer(double seconds_each_run = 1000) : seconds_each_run_(seconds_each_run) {}
  void run(std::span<Callable* const> calls) override {
    seconds_.clear();
    for (Callable* const callable : calls) {
      callable->call();
      seconds_.push_back(seconds_each_run_ * runs_ + static_cast<double>(callable->place()));
    }
    ++runs_;
  }
  void collect(std::span<double> seconds) override {
    std::copy(seconds_.begin(), seconds_.end(), seconds.begin());
  }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return true; }

 private:
  double seconds_each_run_;
  int runs_ = 0;
  std::vector<double> seconds_;
};

/// Replays what was called once, as a graph does.
class ReplayingTimer final : public Timer {
 public:
  void run(std::span<Callable* const> calls) override {
    if (!std::exchange(called_, true)) {
      calls.front()->call();
    }
  }
  void collect(std::span<double> seconds) override { std::ranges::fill(seconds, 1.0); }
  double tick_seconds() const override { return 0; }
  bool queues_calls() const override { return true; }

 private:
  bool called_ = false;
};

/// The numbers of a PlaceTimer's runs, as `batches` has to tell them apart, and the places.
void expect_true_places(const SamplerResult& result) {
  const CandidateSamples& moving = result.candidates[0];
  ASSERT_EQ(moving.places.size(), moving.seconds.size());
  ASSERT_EQ(result.batches.size(), moving.seconds.size());
  for (std::size_t i = 0; i < moving.seconds.size(); ++i) {
    const double run = std::floor(moving.seconds[i] / 1000);
    EXPECT_EQ(static_cast<double>(moving.places[i]), moving.seconds[i] - 1000 * run) << i;
    EXPECT_EQ(static_cast<double>(result.batches[i] - result.batches[0]),
              run - std::floor(moving.seconds[0] / 1000))
        << i;
  }
}

TEST_F(SamplerTest, KnowsThePlaceAndTheBatchOfEachSample) {
  Moving moving(7);
  Callable* const candidates[] = {&moving, &a_};
  PlaceTimer timer;
  const SamplerResult result = Sampler(timer, nullptr, nullptr, {.min_steady_seconds = 0},
                                       {.criterion = StopCriterion::kCount, .max_samples = 500})
                                   .run(candidates);
  expect_true_places(result);
  EXPECT_GT(result.batches.back(), result.batches.front());
  EXPECT_TRUE(result.candidates[1].places.empty());  // it has one
}

TEST_F(SamplerTest, IsNotSettledByManySamplesOfFewPlaces) {
  Moving moving(20);
  Callable* const candidates[] = {&moving};
  PlaceTimer timer(0);  // 0 .. 19 seconds
  const StopRule rule{.max_samples = 1000, .budget_seconds = 60, .tolerance = 0.2};
  const SamplerResult result = Sampler(timer, nullptr, nullptr, kOneCall, rule).run(candidates);
  EXPECT_EQ(result.stop_reason, StopReason::kMaxSamples);
}

TEST_F(SamplerTest, ForgetsThePlacesOfWhatItSetsAside) {
  FakeHold hold;
  hold.early = true;
  hold.held_at_first = 1;
  hold.failures_after = true;
  Moving moving(7);
  Callable* const candidates[] = {&moving};
  PlaceTimer timer;
  const SamplerResult result =
      Sampler(timer, &hold, nullptr, kOneCall, {.min_samples = 100}).run(candidates);
  EXPECT_FALSE(result.candidates[0].discarded.empty());
  expect_true_places(result);
}

TEST_F(SamplerTest, HasNoPlacesWhereTheFirstCallShowsThatThereIsOne) {
  Moving moving(7);
  Callable* const candidates[] = {&moving};
  PlaceTimer timer(0);
  const auto calibrate = [&](bool) {  // behind the first call
    moving.stay();
    return Overhead{};
  };
  const SamplerResult result =
      Sampler(timer, nullptr, nullptr, kOneCall, {}, {}, nullptr, calibrate).run(candidates);
  EXPECT_TRUE(result.candidates[0].places.empty());
}

TEST_F(SamplerTest, HasNoPlacesOfCallsThatAreReplayed) {
  Moving moving(7);
  Callable* const candidates[] = {&moving};
  ReplayingTimer timer;
  const SamplerResult result = Sampler(timer, nullptr, nullptr, kOneCall, {}).run(candidates);
  EXPECT_TRUE(result.candidates[0].places.empty());
}

TEST_F(SamplerTest, RefusesNoCandidatesAndImpossibleRules) {
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, kOneCall, {}).run({}), std::invalid_argument);
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, kOneCall, {.min_samples = 0}),
               std::invalid_argument);
  EXPECT_THROW(Sampler(timer_, nullptr, nullptr, {.seconds = -1}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace convtime
