#include "timing/batch.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>

#include "timing/clock.h"

namespace convtime {
namespace {

/// Sleeping longer than the host needed so far absorbs its jitter.
constexpr double kHoldMargin = 1.5;
constexpr double kHoldExtraSeconds = 50e-6;

/// Return the number of API calls that issued these activities; a CUDA graph counts as one launch.
std::size_t count_launches(const std::vector<DeviceActivity>& activities) {
  std::set<std::uint32_t> calls;
  for (const DeviceActivity& activity : activities) {
    calls.insert(activity.correlation);
  }
  return calls.size();
}

/// Return the sum of each candidate's largest number of launches per call.
std::size_t launches_of_round(const Series& candidates) {
  std::size_t launches = 0;
  for (const CandidateSamples& candidate : candidates) {
    std::size_t most = 0;
    for (const Sample& sample : candidate.samples) {
      most = std::max(most, sample.activities ? count_launches(*sample.activities) : 0);
    }
    launches += most;
  }
  return launches;
}

/// Releases the queue, also if an exception ends the batch.
class Release {
 public:
  explicit Release(QueueHold* hold) : hold_(hold) {}
  ~Release() { (*this)(); }
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;

  /// Return true if the queue was held until now, or was not supposed to be held.
  bool operator()() noexcept {
    QueueHold* const hold = std::exchange(hold_, nullptr);
    return hold == nullptr || hold->release();
  }

 private:
  QueueHold* hold_;
};

}  // namespace

/// A batch's calls in order, with the candidate of each.
struct BatchRunner::Schedule {
  std::vector<Callable*> calls;
  std::vector<std::size_t> candidate;
};

/// How the host issued a batch.
struct BatchRunner::Issue {
  double start = 0;
  double seconds = 0;
  double hold_seconds = 0;  ///< the longest hold requested
  bool held = false;
};

BatchRunner::BatchRunner(std::span<Callable* const> candidates, Timer& timer, QueueHold* hold,
                         ClockProbe* probe, const HostHooks& hooks)
    : candidates_(candidates.begin(), candidates.end()),
      timer_(timer),
      hold_(hold),
      probe_(probe),
      hooks_(hooks),
      sees_all_launches_(std::ranges::none_of(
          candidates, [](const Callable* candidate) { return candidate->prepares_work(); })) {
  for (Callable*& candidate : candidates_) {
    if (candidate->distinct_calls() == 1) {
      places_.push_back(nullptr);
    } else {
      candidate = places_.emplace_back(std::make_unique<PlaceRecorder>(*candidate)).get();
    }
  }
}

CallCost BatchRunner::call_alone(std::size_t candidate) {
  Callable* const call = candidates_[candidate];
  const double start = now_seconds();
  timer_.run({&call, 1});
  const double host_seconds = now_seconds() - start;
  Collection collected;
  hooks_.wait_for_device([&] {
    collected = timer_.collect(1);
    if (probe_ != nullptr) {
      double ignored = 0;
      probe_->finish();
      probe_->collect({&ignored, 1});
    }
  });
  const auto& activities = collected.calls.front().activities;
  return {host_seconds, now_seconds() - start, activities ? count_launches(*activities) : 0};
}

std::size_t BatchRunner::rounds_in(double seconds) const {
  return static_cast<std::size_t>(std::clamp(seconds / std::max(round_.wall_seconds, 1e-7), 1.0,
                                             static_cast<double>(kMaxRounds)));
}

std::size_t BatchRunner::batch_rounds_in(double seconds) const {
  const std::size_t rounds = rounds_in(seconds);
  return hold_ == nullptr ? rounds : std::min(rounds, plan_.round_limit(round_load()));
}

RoundLoad BatchRunner::round_load() const {
  return {candidates_.size(), sees_all_launches_ ? round_.launches : 0, round_.host_seconds};
}

Batch BatchRunner::run(std::size_t rounds, const std::function<void()>& before_release) {
  const Schedule schedule = shuffle_rounds(rounds);
  const Issue issued = issue(schedule, rounds, before_release);
  Batch batch = collect(schedule, issued);
  if (batch.held) {
    learn_cost(batch, rounds);
  }
  batch.hold_given_up = !learn_from(issued, rounds);
  return batch;
}

void BatchRunner::isolate() {
  hold_ = nullptr;
  isolated_ = true;
  timer_.isolate();
  not_held_reason_ =
      "each call is made on an idle GPU: some of its work is on other streams, and nothing orders "
      "it with the timed stream";
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

/// Return the time in which the host can issue that many rounds; if release() ends a hold, return
/// the maximum.
double BatchRunner::seconds_to_hold(std::size_t rounds) const {
  if (hold_ == nullptr || hold_->ends_early()) {
    return kMaxHoldSeconds;
  }
  return std::min(kMaxHoldSeconds, kHoldMargin * round_.host_seconds * static_cast<double>(rounds) +
                                       kHoldExtraSeconds);
}

BatchRunner::Issue BatchRunner::issue(const Schedule& schedule, std::size_t rounds,
                                      const std::function<void()>& before_release) {
  Issue issue;
  issue.hold_seconds = seconds_to_hold(rounds);
  Release release(hold_);
  if (hold_ != nullptr) {
    hold_->hold(issue.hold_seconds);
  }
  for (const auto& places : places_) {
    if (places != nullptr) {
      places->take();
    }
  }
  issue.start = now_seconds();
  timer_.run(schedule.calls);
  if (probe_ != nullptr) {
    probe_->finish();
  }
  issue.seconds = now_seconds() - issue.start;
  if (hold_ != nullptr && before_release) {
    before_release();
  }
  issue.held = release();
  return issue;
}

Batch BatchRunner::collect(const Schedule& schedule, const Issue& issue) {
  Collection collected;
  std::vector<double> clocks_hz(probe_ == nullptr ? 0 : schedule.calls.size());
  hooks_.wait_for_device([&] {
    collected = timer_.collect(schedule.calls.size());
    if (probe_ != nullptr) {
      probe_->collect(clocks_hz);
    }
  });
  Batch batch{.candidates = Series(candidates_.size()),
              .fault = std::move(collected.fault),
              .of_other_threads = collected.of_other_threads,
              .held = issue.held,
              .issue_seconds = issue.seconds,
              .wall_seconds = now_seconds() - issue.start};
  for (std::size_t i = 0; i < collected.calls.size(); ++i) {
    TimedCall& call = collected.calls[i];
    CandidateSamples& candidate = batch.candidates[schedule.candidate[i]];
    candidate.unrecorded.insert(call.unrecorded.begin(), call.unrecorded.end());
    batch.unordered |= !isolated_ && call.activities &&
                       std::ranges::any_of(*call.activities, &DeviceActivity::unordered);
    Sample& sample = candidate.samples.emplace_back();
    sample.seconds = call.seconds;
    sample.batch = batches_;
    if (!clocks_hz.empty()) {
      sample.sm_clock_hz = clocks_hz[i];
    }
    sample.reading = call.reading;
    sample.activities = std::move(call.activities);
  }
  ++batches_;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    add_places(i, batch.candidates[i].samples);
  }
  return batch;
}

void BatchRunner::add_places(std::size_t candidate, std::vector<Sample>& samples) {
  PlaceRecorder* const recorder = places_[candidate].get();
  if (recorder == nullptr || recorder->distinct_calls() == 1) {  // the first call can show that
    return;
  }
  const std::vector<std::size_t> places = recorder->take();
  if (places.size() == samples.size()) {  // graph replays are not calls
    for (std::size_t i = 0; i < places.size(); ++i) {
      samples[i].place = places[i];
    }
  }
}

/// Learn a round's cost from batches: a first call may have compiled for seconds, and tried many
/// launches. Not called for a stalled batch, which shows nothing.
void BatchRunner::learn_cost(const Batch& batch, std::size_t rounds) {
  round_.wall_seconds = batch.wall_seconds / static_cast<double>(rounds);
  round_.launches = launches_of_round(batch.candidates);
}

/// Return whether the queue is still held; false if holding was given up.
bool BatchRunner::learn_from(const Issue& issue, std::size_t rounds) {
  const double round_seconds = issue.seconds / static_cast<double>(rounds);
  if (issue.held) {
    // Approach the measured value, so that one hiccup does not lengthen all later sleeps.
    round_.host_seconds = std::max(round_.host_seconds / 2, round_seconds);
    plan_.held();
    return true;
  }
  if (issue.hold_seconds < kMaxHoldSeconds) {
    round_.host_seconds = std::max(2 * round_.host_seconds, round_seconds);
    return true;  // the next hold is longer
  }
  plan_.stalled(rounds);
  if (!plan_.given_up()) {
    return true;
  }
  hold_ = nullptr;
  not_held_reason_ = plan_.reason(round_load());
  return false;
}

}  // namespace convtime
