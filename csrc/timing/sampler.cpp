#include "timing/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "timing/clock.h"

namespace convtime {
namespace {

constexpr std::size_t kMaxRoundsInBatch = 64;
/// A batch is no longer than this, so that the stop rule and signals are looked at often enough.
constexpr double kBatchSeconds = 0.02;
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
    result.activities[i].clear();
  }
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

Sampler::Sampler(Timer& timer, QueueHold* hold, Warmup warmup, StopRule rule, HostHooks hooks)
    : timer_(timer),
      hold_(timer.queues_calls() ? hold : nullptr),
      warmup_(warmup),
      rule_(rule),
      hooks_(std::move(hooks)) {
  rule_.validate();
  if (!(warmup_.seconds >= 0)) {
    throw std::invalid_argument("warmup_seconds must be 0 or more, got " +
                                std::to_string(warmup_.seconds));
  }
}

Sampler::Cost Sampler::warm_up(std::span<Callable* const> candidates, SamplerResult& result) {
  Cost cost;
  const double start = now_seconds();
  for (Callable* const candidate : candidates) {
    const double candidate_start = now_seconds();
    double host = std::numeric_limits<double>::infinity();
    double wall = host;
    std::size_t calls = 0;
    // One call even where no warm-up is asked for: what it costs sizes the first batch.
    do {
      const double call_start = now_seconds();
      timer_.run({&candidate, 1});
      host = std::min(host, now_seconds() - call_start);
      double ignored = 0;
      hooks_.wait([&] { timer_.collect({&ignored, 1}); });
      wall = std::min(wall, now_seconds() - call_start);
      ++calls;
      hooks_.poll();
    } while (calls < warmup_.calls || now_seconds() - candidate_start < warmup_.seconds);
    cost.host_seconds += host;
    cost.wall_seconds += wall;
    result.warmup_calls += calls;
  }
  result.warmup_seconds = now_seconds() - start;
  return cost;
}

std::size_t Sampler::rounds_in_batch(const Cost& cost, const SamplerResult& result, double elapsed,
                                     std::size_t limit) const {
  const std::size_t taken = result.seconds.front().size();
  // Up to min_samples the stop rule has nothing to say but "budget".
  const std::size_t wanted =
      taken < rule_.min_samples ? rule_.min_samples - taken : rule_.max_samples - taken;
  const double affordable =
      std::min(kBatchSeconds, rule_.budget_seconds - elapsed) / std::max(cost.wall_seconds, 1e-7);
  const auto rounds =
      static_cast<std::size_t>(std::clamp(affordable, 1.0, static_cast<double>(limit)));
  return std::min(rounds, wanted);
}

SamplerResult Sampler::run(std::span<Callable* const> candidates) {
  if (candidates.empty()) {
    throw std::invalid_argument("there must be at least one candidate to time, got none");
  }
  SamplerResult result;
  result.seconds.resize(candidates.size());
  result.discarded.resize(candidates.size());
  result.activities.resize(candidates.size());
  Cost cost = warm_up(candidates, result);

  std::mt19937 random(0);  // a fixed seed: the order is arbitrary, not different each time
  QueueHold* hold = hold_;
  std::size_t round_limit = kMaxRoundsInBatch;
  const double start = now_seconds();
  while (result.stop_reason == StopReason::kNotYet) {
    const std::size_t rounds = rounds_in_batch(cost, result, now_seconds() - start, round_limit);
    const Schedule schedule = shuffle_rounds(candidates, rounds, random);
    const auto batch_rounds = static_cast<double>(rounds);
    double hold_seconds = kMaxHoldSeconds;
    if (hold != nullptr && !hold->ends_early()) {
      hold_seconds = std::min(kMaxHoldSeconds,
                              kHoldMargin * cost.host_seconds * batch_rounds + kHoldExtraSeconds);
    }
    Release release(hold);
    if (hold != nullptr) {
      hold->hold(hold_seconds);
    }
    const double issue_start = now_seconds();
    timer_.run(schedule.calls);
    const double issue_seconds = now_seconds() - issue_start;
    const bool held = release();

    std::vector<double> seconds(schedule.calls.size());
    hooks_.wait([&] { timer_.collect(seconds); });
    auto& destination = held ? result.seconds : result.discarded;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      destination[schedule.candidate[i]].push_back(seconds[i]);
    }
    auto activities = timer_.take_activities();
    for (std::size_t i = 0; held && i < activities.size(); ++i) {
      result.activities[schedule.candidate[i]].push_back(std::move(activities[i]));
    }
    if (!held) {
      cost.host_seconds = std::max(2 * cost.host_seconds, issue_seconds / batch_rounds);
      if (hold_seconds >= kMaxHoldSeconds && rounds > 1) {
        // Perhaps there is no room in the queue for that many launches.
        round_limit = std::max<std::size_t>(1, rounds / 8);
      } else if (hold_seconds >= kMaxHoldSeconds) {
        hold = nullptr;
        set_aside(result);
        result.queue_reason =
            "a call was still being issued after 0.1 s: it waits for the GPU, overfills the launch "
            "queue, or takes the host that long";
      }
    } else {
      // Towards what was seen, so that one hiccup does not lengthen all later sleeps.
      cost.host_seconds = std::max(cost.host_seconds / 2, issue_seconds / batch_rounds);
    }
    hooks_.poll();
    result.sampling_seconds = now_seconds() - start;
    result.stop_reason = rule_.decide(result.seconds, result.sampling_seconds);
  }
  result.queue_held = hold != nullptr;
  return result;
}

}  // namespace convtime
