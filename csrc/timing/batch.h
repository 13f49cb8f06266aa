#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/queue_hold.h"
#include "timing/host_hooks.h"
#include "timing/samples.h"
#include "timing/timers/timer.h"

namespace convtime {

/// A Callable that records the placement of each of its calls.
class PlaceRecorder final : public ForwardingCallable {
 public:
  using ForwardingCallable::ForwardingCallable;

  void call() override {
    ForwardingCallable::call();
    places_.push_back(place());
  }

  /// Return the placements of the calls since the last take().
  std::vector<std::size_t> take() { return std::exchange(places_, {}); }

 private:
  std::vector<std::size_t> places_;
};

/// The cost of calls.
struct CallCost {
  double host_seconds = 0;   ///< to issue them
  double wall_seconds = 0;   ///< to issue them and wait for them
  std::size_t launches = 0;  ///< launches on a device; 0 if the timer does not see them
};

/// The result of a batch: rounds of calls that were issued together.
struct Batch {
  Series candidates;
  std::string fault{};               ///< Collection::fault
  std::size_t of_other_threads = 0;  ///< Collection::of_other_threads
  bool held = false;  ///< whether the queue was held until all were issued, or was not supposed to
                      ///< be held
  bool hold_given_up = false;  ///< the queue is no longer held from here on: do not mix batches
  bool unordered = false;      ///< whether some work overlapped another call or earlier work
  double issue_seconds = 0;    ///< host time to issue all calls
  double wall_seconds = 0;     ///< from the first call's issue until all were done
};

/// Issues rounds of calls in batches while the queue is held, and learns from each batch how to
/// hold the queue for the next.
class BatchRunner {
 public:
  static constexpr std::size_t kMaxRounds = 64;

  /// Return the maximum number of calls in one Timer::run() for that many candidates.
  static std::size_t max_calls(std::size_t candidates) { return kMaxRounds * candidates; }

  /// The arguments are those of SamplerSetup, and must outlive this object.
  BatchRunner(std::span<Callable* const> candidates, Timer& timer, QueueHold* hold,
              ClockProbe* probe, const HostHooks& hooks);

  /// Make one call of that candidate in isolation, without a hold, and wait for its work.
  CallCost call_alone(std::size_t candidate);

  /// Set the expected cost of a round before the first batch.
  void expect(const CallCost& round) { round_ = round; }

  /// Return how many rounds fit in that time, from 1 to kMaxRounds.
  std::size_t rounds_in(double seconds) const;
  /// Like rounds_in(), limited to the rounds for which the queue can be held.
  std::size_t batch_rounds_in(double seconds) const;
  double seconds_of(std::size_t rounds) const {
    return static_cast<double>(rounds) * round_.wall_seconds;
  }

  /// Run a batch. Each round calls every candidate once, in a random order. If the queue is held,
  /// `before_release` is called before it is released.
  Batch run(std::size_t rounds, const std::function<void()>& before_release = {});

  /// Call after the candidates' first calls; returns how many more calls it made.
  std::size_t settle() { return timer_.settle(candidates_); }
  std::size_t repeats(std::size_t candidate) const {
    return timer_.repeats(*candidates_[candidate]);
  }

  /// From now on, each call starts on an idle device, and the queue is not held.
  void isolate();

  /// No longer hold the queue, unless that was given up before.
  void give_up_hold(std::string reason) {
    if (hold_ != nullptr) {
      hold_ = nullptr;
      not_held_reason_ = std::move(reason);
    }
  }

  bool holds_queue() const { return hold_ != nullptr; }
  /// Return why the queue is no longer held, or why calls are isolated; empty if neither applies.
  const std::string& not_held_reason() const { return not_held_reason_; }

 private:
  struct Schedule;
  struct Issue;

  Schedule shuffle_rounds(std::size_t rounds);
  double seconds_to_hold(std::size_t rounds) const;
  Issue issue(const Schedule& schedule, std::size_t rounds,
              const std::function<void()>& before_release);
  Batch collect(const Schedule& schedule, const Issue& issue);
  void add_places(std::size_t candidate, std::vector<Sample>& samples);
  RoundLoad round_load() const;
  void learn_cost(const Batch& batch, std::size_t rounds);
  bool learn_from(const Issue& issue, std::size_t rounds);

  std::vector<std::unique_ptr<PlaceRecorder>> places_;  ///< null for candidates with one placement
  std::vector<Callable*> candidates_;                   ///< as passed to the timer
  Timer& timer_;
  QueueHold* hold_;
  ClockProbe* probe_;
  const HostHooks& hooks_;
  CallCost round_;
  std::size_t batches_ = 0;
  HoldPlan plan_{kMaxRounds};
  bool isolated_ = false;
  bool sees_all_launches_;  ///< only the launches that the timer sees; it does not look at
                            ///< prepare()
  std::string not_held_reason_;
  std::mt19937 random_{0};  // fixed seed: the order is arbitrary but reproducible
};

}  // namespace convtime
