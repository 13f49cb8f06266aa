#include "timing/sampler.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "timing/clock.h"
#include "timing/judge/steadiness.h"

namespace convtime {
namespace {

constexpr std::size_t kMaxRoundsInBatch = 64;
/// Idling is cut in pieces of this length, so that signals are looked at often enough.
constexpr double kIdlePieceSeconds = 0.02;
/// The device is given untimed work in pieces of this length, two of which wait for it.
constexpr double kLoadPieceSeconds = 0.01;
/// Sleeping longer than the host was seen to need absorbs its jitter.
constexpr double kHoldMargin = 1.5;
constexpr double kHoldExtraSeconds = 50e-6;
/// A callable that is still being issued after this long waits for the GPU or overfills the queue.
constexpr double kMaxHoldSeconds = 0.1;

/// The calls of `rounds` rounds in the order they are made, and which candidate each one is.
struct Schedule {
  std::vector<Callable*> calls;
  std::vector<std::size_t> candidate;
};

Schedule shuffle_rounds(std::span<Callable* const> candidates, std::size_t rounds,
                        std::mt19937& random) {
  Schedule schedule;
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t index : order) {
      schedule.calls.push_back(candidates[index]);
      schedule.candidate.push_back(index);
    }
  }
  return schedule;
}

/// Moves all samples to the discarded ones: they were taken under another condition than the next.
void set_aside(SamplerResult& result) {
  for (std::size_t i = 0; i < result.seconds.size(); ++i) {
    auto& discarded = result.discarded[i];
    discarded.insert(discarded.end(), result.seconds[i].begin(), result.seconds[i].end());
    result.seconds[i].clear();
    result.clock_hertz[i].clear();
    result.activities[i].clear();
  }
}

void forget_first(std::size_t rounds, SamplerResult& series) {
  const auto erase_head = [&](auto& values) {
    if (!values.empty()) {
      values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rounds));
    }
  };
  for (std::size_t i = 0; i < series.seconds.size(); ++i) {
    erase_head(series.seconds[i]);
    erase_head(series.clock_hertz[i]);
    erase_head(series.activities[i]);
  }
}

/// What the regime set aside of a series stays known, also where the rest of it gives no samples.
void keep_discarded(SamplerResult& series, SamplerResult& result) {
  for (std::size_t i = 0; i < series.discarded.size(); ++i) {
    auto& discarded = result.discarded[i];
    discarded.insert(discarded.end(), series.discarded[i].begin(), series.discarded[i].end());
  }
}

/// Takes the last `rounds` rounds of a series for samples.
void keep_last(std::size_t rounds, SamplerResult& series, SamplerResult& result) {
  const auto move_tail = [&](auto& from, auto& to) {
    if (!from.empty()) {  // as clocks and activities are where they are not known
      to.assign(std::make_move_iterator(from.end() - static_cast<std::ptrdiff_t>(rounds)),
                std::make_move_iterator(from.end()));
    }
  };
  for (std::size_t i = 0; i < series.seconds.size(); ++i) {
    move_tail(series.seconds[i], result.seconds[i]);
    move_tail(series.clock_hertz[i], result.clock_hertz[i]);
    move_tail(series.activities[i], result.activities[i]);
  }
  result.warmup_calls -= rounds * series.seconds.size();
}

/// Rounds until the rule can say something else, `taken` being taken.
std::size_t rounds_until_decision(const StopRule& rule, std::size_t taken) {
  if (taken < rule.min_samples) {
    return rule.min_samples - taken;
  }
  return rule.criterion == StopCriterion::kBudget ? kMaxRoundsInBatch : rule.max_samples - taken;
}

SamplerResult make_result(std::size_t candidates) {
  SamplerResult result;
  result.seconds.resize(candidates);
  result.discarded.resize(candidates);
  result.clock_hertz.resize(candidates);
  result.activities.resize(candidates);
  return result;
}

/// Releases the queue, also where an exception ends the batch.
class Release {
 public:
  explicit Release(QueueHold* hold) : hold_(hold) {}
  ~Release() { (*this)(); }
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;

  /// True if the queue was held until now, or was not to be held.
  bool operator()() noexcept {
    QueueHold* const hold = std::exchange(hold_, nullptr);
    return hold == nullptr || hold->release();
  }

 private:
  QueueHold* hold_;
};

}  // namespace

std::size_t Sampler::max_batch(std::size_t candidates) { return kMaxRoundsInBatch * candidates; }

Sampler::Sampler(Timer& timer, QueueHold* hold, ClockProbe* probe, Warmup warmup, StopRule rule,
                 HostHooks hooks, RegimeControl* regime)
    : timer_(timer),
      hold_(timer.queues_calls() ? hold : nullptr),
      probe_(probe),
      regime_(regime == nullptr ? as_is_ : *regime),
      warmup_(regime_.warmup(warmup)),
      rule_(rule),
      hooks_(std::move(hooks)) {
  rule_.validate();
  if (!(warmup_.seconds >= 0)) {
    throw std::invalid_argument("warmup must be 0 or more seconds, got " +
                                std::to_string(warmup_.seconds));
  }
}

/// One by one and without a hold: first calls may wait for the device, and what they cost sizes the
/// first batch. So there is one call of each even where no warm-up is asked for.
void Sampler::call_untimed(std::span<Callable* const> candidates, SamplerResult& result,
                           Progress& progress) {
  for (Callable* const candidate : candidates) {
    const double start = now_seconds();
    double host = std::numeric_limits<double>::infinity();
    double wall = host;
    std::size_t calls = 0;
    do {
      const double call_start = now_seconds();
      timer_.run({&candidate, 1});
      host = std::min(host, now_seconds() - call_start);
      double ignored = 0;
      hooks_.wait([&] {
        timer_.collect({&ignored, 1});
        if (probe_ != nullptr) {
          probe_->finish();
          probe_->collect({&ignored, 1});
        }
      });
      const double call_seconds = now_seconds() - call_start;
      wall = std::min(wall, call_seconds);
      if (calls == 0) {
        result.first_call_seconds.push_back(call_seconds);
      }
      ++calls;
      hooks_.poll();
    } while (calls < warmup_.calls || now_seconds() - start < warmup_.seconds);
    progress.host_seconds += host;
    progress.wall_seconds += wall;
    result.warmup_calls += calls;
  }
}

bool Sampler::become_steady(std::span<Callable* const> candidates, SamplerResult& result,
                            Progress& progress) {
  SamplerResult series = make_result(candidates.size());
  const auto is_steady_now = [&] {
    const auto drifts = [](const auto& one) { return !one.empty() && !is_steady(one); };
    return std::none_of(series.seconds.begin(), series.seconds.end(), drifts) &&
           std::none_of(series.clock_hertz.begin(), series.clock_hertz.end(), drifts);
  };
  const double start = working_clock();
  double elapsed = 0;
  double series_start = 0;
  std::size_t rounds_tested = 0;
  bool steady = false;
  while (!steady && elapsed < warmup_.max_steady_seconds && !regime_.exhausted()) {
    const std::size_t rounds = affordable_rounds(progress, warmup_.max_steady_seconds - elapsed);
    run_batch(candidates, rounds, series, progress);
    result.warmup_calls += rounds * candidates.size();
    hooks_.poll();
    elapsed = working_clock() - start;
    const std::size_t taken = series.seconds.front().size();
    if (elapsed < warmup_.min_steady_seconds || !regime_.settled() ||
        taken < rounds_tested + rounds_tested / 10 + 1) {
      continue;  // testing a long series after each batch would take longer than the batches
    }
    rounds_tested = taken;
    steady = is_steady_now();
    if (!steady && elapsed - series_start > warmup_.max_series_seconds &&
        taken / 2 >= kSteadyWindow) {
      forget_first(taken / 2, series);
      series_start += (elapsed - series_start) / 2;
      rounds_tested -= taken / 2;
    }
  }
  if (&regime_ != &as_is_) {
    keep_discarded(series, result);
  }
  if (steady) {
    const std::size_t taken = series.seconds.front().size();
    const bool limited = rule_.criterion != StopCriterion::kBudget;
    keep_last(std::min(steady_window(taken), limited ? rule_.max_samples : taken), series, result);
  }
  return steady;
}

double Sampler::working_clock() const { return now_seconds() - regime_.idle_seconds(); }

/// Leaves the device idle for as long as the regime asks for, and returns the rate of its clock
/// then, in hertz; NaN where it is not known, or there was no idling.
double Sampler::idle() {
  const double start = now_seconds();
  const double end = start + regime_.gap_seconds();
  double now = start;
  if (now >= end) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  for (; now < end; now = now_seconds()) {
    const double piece = std::min(end - now, kIdlePieceSeconds);
    hooks_.wait([&] { std::this_thread::sleep_for(std::chrono::duration<double>(piece)); });
    hooks_.poll();
  }
  regime_.idled(now - start);
  double hertz = std::numeric_limits<double>::quiet_NaN();
  if (probe_ != nullptr) {
    hooks_.wait([&] { hertz = probe_->idle_rate(); });
  }
  return hertz;
}

/// Keeps the device at work for that long with calls that nobody times. It still works on the last
/// of them when the next batch is issued, which so follows without a pause.
void Sampler::load(std::span<Callable* const> candidates, double seconds, Progress& progress) {
  // A method that waits for each call would wait for these in its first one, and a batch that lasts
  // long is load enough itself.
  if (seconds <= regime_.load_seconds() / 2 || probe_ == nullptr || !timer_.queues_calls()) {
    return;
  }
  const auto rounds =
      static_cast<std::size_t>(std::clamp(kLoadPieceSeconds / std::max(progress.wall_seconds, 1e-7),
                                          1.0, static_cast<double>(kMaxRoundsInBatch)));
  const double end = now_seconds() + seconds;
  while (now_seconds() < end) {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (Callable* const candidate : candidates) {
        candidate->prepare();
        candidate->call();
        candidate->discard_result();
      }
    }
    progress.load_calls += rounds * candidates.size();
    probe_->forget();  // it has room for the stamps of a batch
    hooks_.wait([&] { probe_->pace(); });
    hooks_.poll();
  }
}

std::size_t Sampler::affordable_rounds(const Progress& progress, double seconds_left) const {
  const double affordable =
      std::min(regime_.batch_seconds(), seconds_left) / std::max(progress.wall_seconds, 1e-7);
  return static_cast<std::size_t>(
      std::clamp(affordable, 1.0, static_cast<double>(progress.round_limit)));
}

void Sampler::run_batch(std::span<Callable* const> candidates, std::size_t rounds,
                        SamplerResult& result, Progress& progress) {
  const double idle_hertz = idle();
  load(candidates, regime_.load_seconds() - static_cast<double>(rounds) * progress.wall_seconds,
       progress);
  const Schedule schedule = shuffle_rounds(candidates, rounds, progress.random);
  double hold_seconds = kMaxHoldSeconds;
  if (progress.hold != nullptr && !progress.hold->ends_early()) {
    hold_seconds = std::min(
        kMaxHoldSeconds,
        kHoldMargin * progress.host_seconds * static_cast<double>(rounds) + kHoldExtraSeconds);
  }
  Release release(progress.hold);
  if (progress.hold != nullptr) {
    progress.hold->hold(hold_seconds);
  }
  const double issue_start = now_seconds();
  timer_.run(schedule.calls);
  if (probe_ != nullptr) {
    probe_->finish();
  }
  const double issue_seconds = now_seconds() - issue_start;
  const bool held = release();

  std::vector<double> seconds(schedule.calls.size());
  std::vector<double> hertz(probe_ == nullptr ? 0 : schedule.calls.size());
  hooks_.wait([&] {
    timer_.collect(seconds);
    if (probe_ != nullptr) {
      probe_->collect(hertz);
    }
  });
  auto activities = timer_.take_activities();
  RegimeBatch seen{idle_hertz, std::vector<std::vector<double>>(candidates.size()),
                   now_seconds() - issue_start};
  for (std::size_t i = 0; i < hertz.size(); ++i) {
    seen.clock_hertz[schedule.candidate[i]].push_back(hertz[i]);
  }
  const BatchFate fate = held ? regime_.judge(seen) : BatchFate::kSetAside;
  if (fate == BatchFate::kSetEarlierAside || fate == BatchFate::kSetAllAside) {
    set_aside(result);
  }
  const bool keep = fate == BatchFate::kKeep || fate == BatchFate::kSetEarlierAside;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const std::size_t candidate = schedule.candidate[i];
    if (!keep) {
      result.discarded[candidate].push_back(seconds[i]);
      continue;
    }
    result.seconds[candidate].push_back(seconds[i]);
    if (!hertz.empty()) {
      result.clock_hertz[candidate].push_back(hertz[i]);
    }
    if (!activities.empty()) {
      result.activities[candidate].push_back(std::move(activities[i]));
    }
  }
  learn_from_release(held, hold_seconds, issue_seconds, rounds, result, progress);
}

void Sampler::learn_from_release(bool held, double hold_seconds, double issue_seconds,
                                 std::size_t rounds, SamplerResult& result,
                                 Progress& progress) const {
  const double round_seconds = issue_seconds / static_cast<double>(rounds);
  if (held) {
    // Towards what was seen, so that one hiccup does not lengthen all later sleeps.
    progress.host_seconds = std::max(progress.host_seconds / 2, round_seconds);
    return;
  }
  progress.host_seconds = std::max(2 * progress.host_seconds, round_seconds);
  if (hold_seconds < kMaxHoldSeconds) {
    return;  // it will be held longer
  }
  if (rounds > 1) {
    // Perhaps there is no room in the queue for that many launches.
    progress.round_limit = std::max<std::size_t>(1, rounds / 8);
    return;
  }
  progress.hold = nullptr;
  set_aside(result);
  progress.queue_reason =
      "a call was still being issued after 0.1 s: it waits for the GPU, overfills the launch "
      "queue, or takes the host that long";
}

SamplerResult Sampler::run(std::span<Callable* const> candidates) {
  if (candidates.empty()) {
    throw std::invalid_argument("there must be at least one candidate to time, got none");
  }
  SamplerResult result = make_result(candidates.size());
  Progress progress;
  progress.hold = hold_;
  progress.round_limit = kMaxRoundsInBatch;
  progress.random.seed(0);  // fixed: the order is arbitrary, not different each time

  const double warmup_start = now_seconds();
  call_untimed(candidates, result, progress);
  if (warmup_.steady) {
    result.steady = become_steady(candidates, result, progress);
  }
  result.warmup_seconds = now_seconds() - warmup_start;
  const double start = working_clock();
  result.stop_reason = rule_.decide(result.seconds, 0);
  while (result.stop_reason == StopReason::kNotYet) {
    const double left = rule_.criterion == StopCriterion::kCount
                            ? regime_.batch_seconds()
                            : rule_.budget_seconds - (working_clock() - start);
    const std::size_t rounds =
        std::min(affordable_rounds(progress, left),
                 rounds_until_decision(rule_, result.seconds.front().size()));
    run_batch(candidates, rounds, result, progress);
    hooks_.poll();
    result.sampling_seconds = working_clock() - start;
    result.stop_reason = rule_.decide(
        result.seconds, regime_.exhausted() ? rule_.budget_seconds : result.sampling_seconds);
  }
  result.warmup_calls += progress.load_calls;
  result.idle_seconds = regime_.idle_seconds();
  result.queue_held = progress.hold != nullptr;
  result.queue_reason = progress.queue_reason;
  return result;
}

}  // namespace convtime
