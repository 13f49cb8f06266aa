#include "timing/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "timing/clock.h"

namespace convtime {
namespace {

/// Sleeping longer than the host was seen to need absorbs its jitter.
constexpr double kHoldMargin = 1.5;
constexpr double kHoldExtraSeconds = 50e-6;
/// A callable that is still being issued after this long waits for the GPU or overfills the queue.
constexpr double kMaxHoldSeconds = 0.1;

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

/// A batch's calls in the order they are made, and which candidate each one is.
struct BatchRunner::Schedule {
  std::vector<Callable*> calls;
  std::vector<std::size_t> candidate;
};

/// How issuing a batch went.
struct BatchRunner::Issue {
  double start = 0;
  double seconds = 0;
  double hold_seconds = 0;  ///< that the queue was to be held for at most
  bool held = false;
};

BatchRunner::BatchRunner(std::span<Callable* const> candidates, Timer& timer, QueueHold* hold,
                         ClockProbe* probe, const HostHooks& hooks)
    : candidates_(candidates), timer_(timer), hold_(hold), probe_(probe), hooks_(hooks) {}

CallCost BatchRunner::call_alone(Callable& candidate) {
  Callable* const call = &candidate;
  const double start = now_seconds();
  timer_.run({&call, 1});
  const double host_seconds = now_seconds() - start;
  double ignored = 0;
  hooks_.wait([&] {
    timer_.collect({&ignored, 1});
    if (probe_ != nullptr) {
      probe_->finish();
      probe_->collect({&ignored, 1});
    }
  });
  return {host_seconds, now_seconds() - start};
}

std::size_t BatchRunner::rounds_in(double seconds) const {
  return static_cast<std::size_t>(std::clamp(seconds / std::max(round_.wall_seconds, 1e-7), 1.0,
                                             static_cast<double>(kMaxRounds)));
}

std::size_t BatchRunner::batch_rounds_in(double seconds) const {
  return std::min(rounds_in(seconds), round_limit_);
}

Batch BatchRunner::run(std::size_t rounds) {
  const Schedule schedule = shuffle_rounds(rounds);
  const Issue issued = issue(schedule, rounds);
  Batch batch = collect(schedule, issued);
  batch.hold_given_up = !learn_from(issued, rounds);
  return batch;
}

BatchRunner::Schedule BatchRunner::shuffle_rounds(std::size_t rounds) {
  Schedule schedule;
  std::vector<std::size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t candidate : order) {
      schedule.calls.push_back(candidates_[candidate]);
      schedule.candidate.push_back(candidate);
    }
  }
  return schedule;
}

/// Enough for the host to issue that many rounds; where release() ends a hold, as long as may be.
double BatchRunner::seconds_to_hold(std::size_t rounds) const {
  if (hold_ == nullptr || hold_->ends_early()) {
    return kMaxHoldSeconds;
  }
  return std::min(kMaxHoldSeconds, kHoldMargin * round_.host_seconds * static_cast<double>(rounds) +
                                       kHoldExtraSeconds);
}

BatchRunner::Issue BatchRunner::issue(const Schedule& schedule, std::size_t rounds) {
  Issue issue;
  issue.hold_seconds = seconds_to_hold(rounds);
  Release release(hold_);
  if (hold_ != nullptr) {
    hold_->hold(issue.hold_seconds);
  }
  issue.start = now_seconds();
  timer_.run(schedule.calls);
  if (probe_ != nullptr) {
    probe_->finish();
  }
  issue.seconds = now_seconds() - issue.start;
  issue.held = release();
  return issue;
}

Batch BatchRunner::collect(const Schedule& schedule, const Issue& issue) {
  std::vector<double> seconds(schedule.calls.size());
  std::vector<double> clocks_hz(probe_ == nullptr ? 0 : schedule.calls.size());
  hooks_.wait([&] {
    timer_.collect(seconds);
    if (probe_ != nullptr) {
      probe_->collect(clocks_hz);
    }
  });
  auto activities = timer_.take_activities();
  Batch batch{.candidates = std::vector<CandidateSamples>(candidates_.size()),
              .held = issue.held,
              .issue_seconds = issue.seconds,
              .busy_seconds = now_seconds() - issue.start};
  for (std::size_t call = 0; call < seconds.size(); ++call) {
    CandidateSamples& samples = batch.candidates[schedule.candidate[call]];
    samples.seconds.push_back(seconds[call]);
    if (!clocks_hz.empty()) {
      samples.sm_clocks_hz.push_back(clocks_hz[call]);
    }
    if (!activities.empty()) {
      samples.activities.push_back(std::move(activities[call]));
    }
  }
  return batch;
}

/// Whether the queue is held as before: false where that was given up.
bool BatchRunner::learn_from(const Issue& issue, std::size_t rounds) {
  const double round_seconds = issue.seconds / static_cast<double>(rounds);
  if (issue.held) {
    // Towards what was seen, so that one hiccup does not lengthen all later sleeps.
    round_.host_seconds = std::max(round_.host_seconds / 2, round_seconds);
    return true;
  }
  round_.host_seconds = std::max(2 * round_.host_seconds, round_seconds);
  if (issue.hold_seconds < kMaxHoldSeconds) {
    return true;  // it will be held longer
  }
  if (rounds > 1) {
    // Perhaps there is no room in the queue for that many launches.
    round_limit_ = std::max<std::size_t>(1, rounds / 8);
    return true;
  }
  hold_ = nullptr;
  not_held_reason_ =
      "a call was still being issued after 0.1 s: it waits for the GPU, overfills the launch "
      "queue, or takes the host that long";
  return false;
}

}  // namespace convtime
