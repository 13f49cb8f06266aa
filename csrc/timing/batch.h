#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "timing/callable.h"
#include "timing/conditions/clock_probe.h"
#include "timing/conditions/hold_plan.h"
#include "timing/conditions/queue_hold.h"
#include "timing/host_hooks.h"
#include "timing/place_recorder.h"
#include "timing/samples.h"
#include "timing/timers/timer.h"

namespace convtime {

/// What calls take.
struct CallCost {
  double host_seconds = 0;  ///< of issuing them
  double wall_seconds = 0;  ///< of issuing them and waiting for them
  std::size_t launches =
      0;  ///< work that they issue to a device; 0 where the timer does not see it
};

/// What a batch gave: rounds of calls that were issued together.
struct Batch {
  std::vector<CandidateSamples> candidates;
  CollectionNotes notes;
  bool held = false;  ///< whether the queue was held until all were issued, or was not to be held
  bool hold_given_up = false;  ///< from here on the queue is not held: batches do not mix
  bool unordered = false;      ///< whether some work overlapped another call or what precedes it
  double issue_seconds = 0;    ///< of the host, to issue all calls
  double wall_seconds = 0;     ///< from the first call's issue until all were done
};

/// Issues rounds of calls in batches, the queue held meanwhile, and learns from each batch how to
/// hold the queue for the next.
class BatchRunner {
 public:
  static constexpr std::size_t kMaxRounds = 64;

  /// What Sampler is made of, `hold` and `probe` being null where it has none; it outlives this.
  BatchRunner(std::span<Callable* const> candidates, Timer& timer, QueueHold* hold,
              ClockProbe* probe, const HostHooks& hooks);

  /// One call of that candidate by itself, without a hold, until its work is done.
  CallCost call_alone(std::size_t candidate);

  /// What a round is known to take before the first batch.
  void expect(const CallCost& round) { round_ = round; }

  /// How many rounds fit into that time: one at least, and kMaxRounds at most.
  std::size_t rounds_in(double seconds) const;
  /// As rounds_in(), and no more than the queue can be held for.
  std::size_t batch_rounds_in(double seconds) const;
  double seconds_of(std::size_t rounds) const {
    return static_cast<double>(rounds) * round_.wall_seconds;
  }

  /// Each round calls every candidate once, in a random order.
  Batch run(std::size_t rounds);

  /// After the candidates' first calls; returns how many more it made.
  std::size_t settle() { return timer_.settle(candidates_); }
  std::size_t repeats(std::size_t candidate) const {
    return timer_.repeats(*candidates_[candidate]);
  }

  /// From now on, each call finds the device idle, and the queue is not held.
  void isolate();

  bool holds_queue() const { return hold_ != nullptr; }
  /// Why the queue is no longer held, or calls are isolated; empty where neither is so.
  const std::string& not_held_reason() const { return not_held_reason_; }

 private:
  struct Schedule;
  struct Issue;

  Schedule shuffle_rounds(std::size_t rounds);
  double seconds_to_hold(std::size_t rounds) const;
  Issue issue(const Schedule& schedule, std::size_t rounds);
  Batch collect(const Schedule& schedule, const Issue& issue);
  RoundLoad round_load() const;
  void learn_cost(const Batch& batch, std::size_t rounds);
  bool learn_from(const Issue& issue, std::size_t rounds);

  std::vector<std::unique_ptr<PlaceRecorder>> places_;  ///< null for candidates with one place
  std::vector<Callable*> candidates_;                   ///< as the timer calls them
  Timer& timer_;
  QueueHold* hold_;
  ClockProbe* probe_;
  const HostHooks& hooks_;
  CallCost round_;
  HoldPlan plan_{kMaxRounds};
  bool isolated_ = false;
  bool sees_all_launches_;  ///< of those that the timer sees; it does not look at prepare()
  std::string not_held_reason_;
  std::mt19937 random_{0};  // fixed: the order is arbitrary, not different each time
};

}  // namespace convtime
