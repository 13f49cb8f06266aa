#include "timing/regime_batches.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "timing/clock.h"
#include "timing/trace/attribution.h"

namespace convtime {
namespace {

/// Idling is split into pieces of this length, so that signals are checked often enough.
constexpr double kIdlePieceSeconds = 0.02;
/// A method is given up after this many faulty batches in a row, or if this many are most of all
/// batches.
constexpr std::size_t kMaxFaultyBatches = 4;
/// The device gets untimed work in pieces of this length; two wait in its queue.
constexpr double kLoadPieceSeconds = 0.01;

/// Fill in the fields that the batch itself determines.
void fill_in(BatchRecord& record, const Batch& batch) {
  record.rounds = rounds_of(batch.candidates);
  record.issue_seconds = batch.issue_seconds;
  record.wall_seconds = batch.wall_seconds;
  for (const CandidateSamples& candidate : batch.candidates) {
    for (const double clock_hz : candidate.sm_clocks_hz()) {
      // fmin and fmax skip NaN, which marks unknown clocks and is the initial value of both.
      record.lowest_clock_hz = std::fmin(record.lowest_clock_hz, clock_hz);
      record.highest_clock_hz = std::fmax(record.highest_clock_hz, clock_hz);
    }
  }
}

}  // namespace

RegimeBatches::RegimeBatches(std::span<Callable* const> candidates, const SamplerSetup& setup,
                             SamplerResult& result)
    : candidates_(candidates),
      setup_(setup),
      result_(result),
      regime_(setup.regime == nullptr ? as_is_ : *setup.regime),
      agreement_(setup.supervision.agreement),
      runner_(candidates, setup.timer, setup.timer.queues_calls() ? setup.hold : nullptr,
              setup.probe, setup.hooks),
      start_(now_seconds()) {}

double RegimeBatches::working_seconds() const {
  return agreement_ == nullptr ? now_seconds() - regime_.idle_seconds() : shared_clock_;
}

bool RegimeBatches::time_is_up() const {
  return agreement_ == nullptr ? setup_.supervision.deadline.passed() : shared_time_is_up_;
}

RegimeBatches::Outcome RegimeBatches::run(std::size_t rounds, bool warming_up, Series& series) {
  last_rounds_ = agreement_ == nullptr ? rounds : agreement_->rounds(rounds);
  BatchRecord record{.warming_up = warming_up};
  const double idled_before = regime_.idle_seconds();
  record.idle_clock_hz = idle();
  record.gap_seconds = regime_.idle_seconds() - idled_before;
  load(regime_.load_seconds() - runner_.seconds_of(last_rounds_));

  const bool to_be_held = runner_.holds_queue();
  Batch batch = agreement_ == nullptr ? runner_.run(last_rounds_) : run_shared(last_rounds_);
  ++batches_run_;
  calls_ += last_rounds_ * candidates_.size();
  result_.of_other_threads += batch.of_other_threads;
  record.held = to_be_held ? std::optional(batch.held) : std::nullopt;
  const auto report = [&](std::string fate) {
    if (setup_.supervision.on_batch) {
      fill_in(record, batch);
      record.fate = std::move(fate);
      setup_.supervision.on_batch(record);
    }
  };

  if (batch.hold_given_up) {
    set_aside(series);
  }
  if (!batch.fault.empty()) {
    report("thrown away: " + batch.fault);
    throw_away(std::move(batch.fault));
    return {batch.hold_given_up};
  }
  faulty_in_a_row_ = 0;
  if (batch.unordered) {
    report("thrown away: work on other streams overlapped other calls");
    set_aside(series);
    runner_.isolate();
    return {batch.hold_given_up};
  }
  const BatchFate fate = judge(batch, record.idle_clock_hz);
  report(batch.hold_given_up ? "set aside with all before it, as the queue cannot be held"
                             : to_string(fate));
  if (fate != BatchFate::kKeep && fate != BatchFate::kSetAside) {
    set_aside(series);
  }
  if (fate == BatchFate::kKeep || fate == BatchFate::kSetEarlierAside) {
    append(std::move(batch.candidates), series);
  } else {
    append_discarded(batch.candidates, series);
  }
  return {batch.hold_given_up, fate == BatchFate::kBeginAnew};
}

/// Run a batch together with other processes. Of its times, the candidates' seconds are the longest
/// of all processes; activities and clocks are those of this process.
Batch RegimeBatches::run_shared(std::size_t rounds) {
  Batch batch = runner_.run(rounds, [this] { agreement_->release(); });
  SharedBatch shared{.seconds = {},
                     .fault = batch.fault,
                     .held = batch.held,
                     .hold_given_up = batch.hold_given_up,
                     .unordered = batch.unordered,
                     .elapsed_seconds = now_seconds() - start_,
                     .time_is_up = setup_.supervision.deadline.passed()};
  for (const CandidateSamples& candidate : batch.candidates) {
    shared.seconds.push_back(candidate.seconds());
  }
  agreement_->share(shared);
  for (std::size_t i = 0; i < batch.candidates.size(); ++i) {
    std::vector<Sample>& samples = batch.candidates[i].samples;
    for (std::size_t round = 0; round < samples.size(); ++round) {
      samples[round].seconds = shared.seconds[i].at(round);
    }
  }
  batch.fault = shared.fault;
  batch.held = shared.held;
  batch.hold_given_up = shared.hold_given_up;
  if (shared.hold_given_up) {
    runner_.give_up_hold("another rank's queue could not be held");
  }
  batch.unordered = shared.unordered;
  shared_clock_ = shared.elapsed_seconds;
  shared_time_is_up_ = shared.time_is_up;
  return batch;
}

/// Faulty samples are dropped completely, not even kept as discarded; another batch follows.
void RegimeBatches::throw_away(std::string fault) {
  ++result_.faulty_batches;
  result_.fault = std::move(fault);
  ++faulty_in_a_row_;
  const bool are_most =
      result_.faulty_batches >= kMaxFaultyBatches && 2 * result_.faulty_batches > batches_run_;
  if (are_most || faulty_in_a_row_ >= kMaxFaultyBatches) {
    throw TraceLost("the records of " + std::to_string(result_.faulty_batches) + " of " +
                    std::to_string(batches_run_) +
                    " batches were incomplete, or the work of a call varies; the last had " +
                    result_.fault);
  }
}

/// Leave the device idle as long as the regime requires, and return its clock rate afterward, in
/// hertz; NaN if it is unknown, or if there was no idling.
double RegimeBatches::idle() {
  double clock_hz = std::numeric_limits<double>::quiet_NaN();
  const double start = now_seconds();
  const double end =
      start + std::min(regime_.gap_seconds(), setup_.supervision.deadline.seconds_left());
  double now = start;
  if (now >= end) {
    return clock_hz;
  }
  for (; now < end; now = now_seconds()) {
    const double piece = std::min(end - now, kIdlePieceSeconds);
    setup_.hooks.wait([&] { std::this_thread::sleep_for(std::chrono::duration<double>(piece)); });
    setup_.hooks.poll();
  }
  regime_.idled(now - start);
  if (setup_.probe != nullptr) {
    setup_.hooks.wait([&] { clock_hz = setup_.probe->idle_clock_hz(); });
  }
  return clock_hz;
}

/// Keep the device busy for that long with untimed calls. It still works on the last ones when the
/// next batch is issued, so the batch follows without a pause.
void RegimeBatches::load(double seconds) {
  // A method that waits for each call would wait for these in its first call, and a long batch is
  // enough load itself.
  if (seconds <= regime_.load_seconds() / 2 || setup_.probe == nullptr ||
      !setup_.timer.queues_calls()) {
    return;
  }
  const std::size_t rounds = runner_.rounds_in(kLoadPieceSeconds);
  setup_.timer.pause();
  const double end = now_seconds() + std::min(seconds, setup_.supervision.deadline.seconds_left());
  while (now_seconds() < end) {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (Callable* const candidate : candidates_) {
        candidate->prepare();
        candidate->call();
        candidate->discard_result();
      }
    }
    result_.warmup_calls += rounds * candidates_.size();
    setup_.probe->forget();  // its capacity is one batch
    setup_.hooks.wait([&] { setup_.probe->pace(); });
    setup_.hooks.poll();
  }
  setup_.timer.resume();
}

/// Return the regime's decision on a batch. It is not consulted for a batch that the device started
/// too early.
BatchFate RegimeBatches::judge(const Batch& batch, double idle_clock_hz) const {
  if (!batch.held) {
    return BatchFate::kSetAside;
  }
  RegimeBatch seen{idle_clock_hz, {}, batch.wall_seconds};
  for (const CandidateSamples& candidate : batch.candidates) {
    seen.clocks_hz.push_back(candidate.sm_clocks_hz());
  }
  return regime_.judge(seen);
}

}  // namespace convtime
