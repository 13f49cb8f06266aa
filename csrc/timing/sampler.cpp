#include "timing/sampler.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "timing/batch.h"
#include "timing/batch_record.h"
#include "timing/clock.h"
#include "timing/judge/disturbance.h"
#include "timing/judge/estimate.h"
#include "timing/judge/steadiness.h"
#include "timing/trace/attribution.h"
#ifdef CONVTIME_WITH_CUDA
#include "program/program.h"
#endif

namespace convtime {
namespace {

/// Idling is split into pieces of this length, so that signals are checked often enough.
constexpr double kIdlePieceSeconds = 0.02;
/// A method is given up after this many faulty batches in a row, or if this many are most of all
/// batches.
constexpr std::size_t kMaxFaultyBatches = 4;
/// The device gets untimed work in pieces of this length; two wait in its queue.
constexpr double kLoadPieceSeconds = 0.01;
/// If most samples are disturbed, up to this multiple of the requested maximum is taken.
constexpr std::size_t kDisturbedOverAsked = 4;
/// A median's interval needs this many samples.
constexpr std::size_t kFewestSamples = 10;
/// The share of the budget for which undisturbed samples are awaited: if none came by then, few
/// will.
constexpr double kPatience = 1.0 / 3;

/// Return the seconds that convtime has spent compiling kernels.
double compile_seconds() {
#ifdef CONVTIME_WITH_CUDA
  return kernel_loading_seconds();
#else
  return 0;
#endif
}

std::size_t rounds_of(const SampledRounds& series) { return series.batches.size(); }

template <typename T>
void append(std::vector<T>&& values, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(values.begin()),
            std::make_move_iterator(values.end()));
}

void append(SampledRounds&& more, SampledRounds& series) {
  for (std::size_t i = 0; i < series.candidates.size(); ++i) {
    CandidateSamples& from = more.candidates[i];
    CandidateSamples& to = series.candidates[i];
    append(std::move(from.seconds), to.seconds);
    append(std::move(from.sm_clocks_hz), to.sm_clocks_hz);
    append(std::move(from.places), to.places);
    append(std::move(from.activities), to.activities);
    append(std::move(from.readings), to.readings);
    to.unrecorded.merge(from.unrecorded);
  }
  append(std::move(more.batches), series.batches);
}

void append_discarded(std::vector<CandidateSamples>&& batch, SampledRounds& series) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    append(std::move(batch[i].seconds), series.candidates[i].discarded);
  }
}

SampledRounds rounds_of_batch(Batch&& batch, std::size_t number) {
  const std::size_t rounds = batch.candidates.front().seconds.size();
  return {std::move(batch.candidates), std::vector<std::size_t>(rounds, number)};
}

/// Move all samples to the discarded ones: they were taken under a different condition than the
/// next.
void set_aside(SampledRounds& series) {
  for (CandidateSamples& samples : series.candidates) {
    append(std::exchange(samples.seconds, {}), samples.discarded);
    samples.sm_clocks_hz.clear();
    samples.places.clear();
    samples.activities.clear();
    samples.readings.clear();
  }
  series.batches.clear();
}

void forget_first(std::size_t rounds, SampledRounds& series) {
  const auto erase_head = [&](auto& values) {
    if (!values.empty()) {  // empty if unknown, like clocks, places and activities
      values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rounds));
    }
  };
  for (CandidateSamples& samples : series.candidates) {
    erase_head(samples.seconds);
    erase_head(samples.sm_clocks_hz);
    erase_head(samples.places);
    erase_head(samples.activities);
    erase_head(samples.readings);
  }
  erase_head(series.batches);
}

template <typename T>
std::vector<T> at(std::span<const std::size_t> rounds, const std::vector<T>& values) {
  std::vector<T> chosen;
  for (const std::size_t round : values.empty() ? std::span<const std::size_t>{} : rounds) {
    chosen.push_back(values[round]);
  }
  return chosen;
}

/// Return whether neither times nor clocks drift, for any candidate. Where all processes have to
/// decide alike, the times that they share decide: a clock is that of one process's device.
bool all_steady(std::span<const CandidateSamples> candidates, bool by_clocks) {
  const auto steady = [](const std::vector<double>& values) {
    return values.empty() || is_steady(values);
  };
  return std::all_of(candidates.begin(), candidates.end(), [&](const CandidateSamples& samples) {
    return steady(samples.seconds) && (!by_clocks || steady(samples.sm_clocks_hz));
  });
}

}  // namespace

/// One run of a sampler, from the first call to the result.
class Sampler::Run {
 public:
  Run(const Sampler& sampler, std::span<Callable* const> candidates, const EarlierCalls& earlier)
      : candidates_(candidates),
        timer_(sampler.timer_),
        probe_(sampler.probe_),
        regime_(sampler.regime_),
        controls_regime_(&sampler.regime_ != &sampler.as_is_),
        warmup_(sampler.warmup_),
        rule_(sampler.rule_),
        judge_(sampler.rule_),
        hooks_(sampler.hooks_),
        calibrate_(sampler.calibrate_),
        supervision_(sampler.supervision_),
        accord_(supervision_.accord),
        batches_(candidates, sampler.timer_, sampler.hold_, sampler.probe_, sampler.hooks_) {
    result_.candidates.resize(candidates.size());
    result_.warmup_calls = earlier.count;
    result_.warmup_seconds = earlier.seconds;
    first_calls_ = earlier.first_calls;
  }

  SamplerResult run() {
    warm_up();
    sample();
    part_disturbed();
    result_.idle_seconds = regime_.idle_seconds();
    result_.clock_tick_seconds = timer_.tick_seconds();
    result_.queue_held = batches_.holds_queue();
    result_.not_held_reason = batches_.not_held_reason();
    return std::move(result_);
  }

  EarlierCalls calls() const { return {first_calls_, calls_made_, now_seconds() - start_}; }

 private:
  void warm_up();
  void call_untimed();
  void settle();
  bool become_steady();
  void take_over(SampledRounds& series);

  void sample();
  void time_out();
  std::size_t next_rounds(double elapsed_seconds) const;
  StopReason decide(double elapsed_seconds);
  bool tells_disturbed_rounds() const;
  std::vector<std::size_t> undisturbed_rounds();
  void part_disturbed();

  void expect_overhead(bool held);
  void run_batch(std::size_t rounds, SampledRounds& series);
  Batch run_shared(std::size_t rounds);
  void throw_away(std::string fault);
  void tell(BatchRecord record, const Batch& batch, std::string fate) const;
  double idle();
  void load(double seconds);
  BatchFate judge(const Batch& batch, double idle_clock_hz) const;

  /// Return the seconds of a clock that stops while the device idles for the regime. With an
  /// accord, it shows the same time in all processes: that of the last batch.
  double working_clock() const {
    return accord_ == nullptr ? now_seconds() - regime_.idle_seconds() : shared_clock_;
  }
  bool time_is_up() const {
    return accord_ == nullptr ? supervision_.deadline.passed() : shared_time_is_up_;
  }
  std::size_t agreed(std::size_t rounds) const {
    return accord_ == nullptr ? rounds : accord_->rounds(rounds);
  }

  std::span<Callable* const> candidates_;
  Timer& timer_;
  ClockProbe* probe_;
  RegimeControl& regime_;
  bool controls_regime_;
  Warmup warmup_;
  const StopRule& rule_;
  StopJudge judge_;
  const HostHooks& hooks_;
  const std::function<Overhead(bool)>& calibrate_;
  const Supervision& supervision_;
  Accord* accord_;
  BatchRunner batches_;
  double start_ = now_seconds();
  std::size_t calls_made_ = 0;
  std::vector<FirstCall> first_calls_;  ///< each candidate's, also by an earlier method
  std::size_t batches_run_ = 0;
  std::size_t faulty_in_a_row_ = 0;
  SamplerResult result_;
  double shared_clock_ = 0;  ///< SharedBatch::elapsed_seconds of the last batch
  bool shared_time_is_up_ = false;
  bool warming_up_ = true;
  bool has_readings_ = timer_.host_record() != nullptr;  ///< of the host's state
  std::vector<bool> disturbed_;                          ///< for each of the timer's readings
  std::size_t undisturbed_ = 0;                          ///< rounds
  bool begins_anew_ = false;  ///< in another regime, whose warm-up follows
};

void Sampler::Run::warm_up() {
  const double start = now_seconds();
  call_untimed();
  const double tick = timer_.tick_seconds();
  judge_.know_tick(accord_ == nullptr ? tick : accord_->begin(tick));
  judge_.know_doubt(has_readings_ ? kDoubtOfCpuRatios : 0);
  expect_overhead(batches_.holds_queue());
  settle();
  result_.warmup_seconds += now_seconds() - start;
}

/// Tell the rule about the method's overhead, unless it has to decide as in other processes, whose
/// overhead differs.
void Sampler::Run::expect_overhead(bool held) {
  if (calibrate_ && accord_ == nullptr) {
    judge_.expect(calibrate_(held));
  }
}

/// Warm up, until steady if requested; repeat if the regime changes.
void Sampler::Run::settle() {
  warming_up_ = true;
  do {
    begins_anew_ = false;
    if (warmup_.steady) {
      result_.steady = become_steady();
    }
  } while (begins_anew_);
  warming_up_ = false;
}

/// Make calls one by one and without a hold: first calls may wait for the device, and their cost
/// sizes the first batch. So each candidate is called once even if no warm-up is requested.
void Sampler::Run::call_untimed() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CallCost round;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const double start = now_seconds();
    CallCost fastest{kInfinity, kInfinity, 0};
    std::size_t calls = 0;
    do {
      const double compiled = compile_seconds();
      const CallCost cost = batches_.call_alone(i);
      fastest.host_seconds = std::min(fastest.host_seconds, cost.host_seconds);
      fastest.wall_seconds = std::min(fastest.wall_seconds, cost.wall_seconds);
      fastest.launches = cost.launches;  // of the last call: a first call may search for its plan
      if (first_calls_.size() == i) {
        first_calls_.push_back({cost.wall_seconds, compile_seconds() - compiled});
      }
      if (calls == 0) {
        candidates_[i]->settle();
      }
      ++calls;
      ++calls_made_;
      hooks_.poll();
      if (supervision_.deadline.passed()) {
        throw DeadlineError();
      }
    } while (calls < warmup_.calls || now_seconds() - start < warmup_.seconds);
    result_.candidates[i].first_call = first_calls_[i];
    round.host_seconds += fastest.host_seconds;
    round.wall_seconds += fastest.wall_seconds;
    round.launches += fastest.launches;
    result_.warmup_calls += calls;
  }
  batches_.expect(round);
  // With kCount, the number of calls is the number of requested samples; with an accord, it must
  // not depend on the times of this process.
  if (rule_.criterion != StopCriterion::kCount && accord_ == nullptr) {
    const std::size_t further_calls = batches_.settle();
    result_.warmup_calls += further_calls;
    calls_made_ += further_calls;
  }
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    result_.candidates[i].repeats = batches_.repeats(i);
  }
}

/// Sample a series until it is steady, and take its end as samples; return false if it never is.
bool Sampler::Run::become_steady() {
  SampledRounds series{std::vector<CandidateSamples>(candidates_.size()), {}};
  const double start = working_clock();
  double elapsed = 0;
  double series_start = 0;
  std::size_t rounds_tested = 0;
  bool steady = false;
  while (!steady && !begins_anew_ && elapsed < warmup_.max_steady_seconds && !regime_.exhausted() &&
         !time_is_up()) {
    const std::size_t rounds = agreed(batches_.batch_rounds_in(
        std::min(regime_.batch_seconds(), warmup_.max_steady_seconds - elapsed)));
    run_batch(rounds, series);
    result_.warmup_calls += rounds * candidates_.size();
    hooks_.poll();
    elapsed = working_clock() - start;
    const std::size_t taken = rounds_of(series);
    if (elapsed < warmup_.min_steady_seconds || !regime_.settled() ||
        taken < rounds_tested + rounds_tested / 10 + 1) {
      continue;  // testing a long series after each batch would take longer than the batches
    }
    rounds_tested = taken;
    steady = all_steady(series.candidates, accord_ == nullptr);
    if (!steady && elapsed - series_start > warmup_.max_series_seconds &&
        taken / 2 >= kSteadyWindow) {
      forget_first(taken / 2, series);
      series_start += (elapsed - series_start) / 2;
      rounds_tested -= taken / 2;
    }
  }
  if (controls_regime_) {
    // Samples that the regime set aside are kept as discarded, even if the rest of the series gives
    // no samples.
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      append(std::move(series.candidates[i].discarded), result_.candidates[i].discarded);
    }
  }
  if (steady || time_is_up()) {
    take_over(series);
  }
  return steady;
}

/// Take the steady part of a series as samples instead of warm-up. Its end is also taken if there
/// is no time for other samples.
void Sampler::Run::take_over(SampledRounds& series) {
  const std::size_t taken = rounds_of(series);
  const std::size_t rounds = std::min(steady_window(taken), rule_.max_samples);
  forget_first(taken - rounds, series);
  append(std::move(series), result_);
  result_.warmup_calls -= rounds * candidates_.size();
}

void Sampler::Run::sample() {
  double start = working_clock();
  result_.stop_reason = decide(0);
  while (result_.stop_reason == StopReason::kNotYet) {
    if (time_is_up()) {
      time_out();
      return;
    }
    try {
      run_batch(agreed(next_rounds(working_clock() - start)), result_);
    } catch (const DeadlineError&) {
      if (accord_ != nullptr) {
        throw;  // the other processes cannot end here as well
      }
      time_out();
      return;
    }
    hooks_.poll();
    if (begins_anew_) {
      const double anew = now_seconds();
      settle();
      result_.warmup_seconds += now_seconds() - anew;
      start = working_clock();  // the budget is only for samples that count
    }
    result_.sampling_seconds = working_clock() - start;
    result_.stop_reason = decide(result_.sampling_seconds);
  }
}

void Sampler::Run::time_out() {
  if (rounds_of(result_) == 0) {
    throw DeadlineError();
  }
  result_.stop_reason = StopReason::kTimeout;
}

/// Return as many rounds as possible until the rule can change its decision.
std::size_t Sampler::Run::next_rounds(double elapsed_seconds) const {
  const double left = rule_.criterion == StopCriterion::kCount
                          ? regime_.batch_seconds()
                          : rule_.budget_seconds - elapsed_seconds;
  const std::size_t affordable = batches_.batch_rounds_in(std::min(regime_.batch_seconds(), left));
  const std::size_t taken = undisturbed_;
  if (rounds_of(result_) == 0 && rule_.first_batch_seconds > 0) {
    return std::min(batches_.batch_rounds_in(std::numeric_limits<double>::infinity()),
                    std::clamp(batches_.rounds_in(rule_.first_batch_seconds), rule_.min_samples,
                               rule_.max_samples));
  }
  if (taken < rule_.min_samples) {
    return std::min(affordable, rule_.min_samples - taken);
  }
  return std::min(affordable, rule_.max_samples - taken);
}

StopReason Sampler::Run::decide(double elapsed_seconds) {
  std::vector<std::size_t> rounds;
  undisturbed_ = rounds_of(result_);
  if (tells_disturbed_rounds()) {
    rounds = undisturbed_rounds();
    if (rounds.size() < std::max(rule_.min_samples, kFewestSamples) &&
        elapsed_seconds >= kPatience * rule_.budget_seconds) {
      rounds.resize(rounds_of(result_));
      std::iota(rounds.begin(), rounds.end(), 0);
    }
    undisturbed_ = rounds.size();
  }
  std::vector<CandidateSamples> chosen;
  std::vector<std::size_t> batches;
  if (undisturbed_ < rounds_of(result_)) {
    for (const CandidateSamples& samples : result_.candidates) {
      CandidateSamples& some = chosen.emplace_back();
      some.seconds = at(rounds, samples.seconds);
      some.places = at(rounds, samples.places);
    }
    batches = at(rounds, result_.batches);
  }
  std::vector<CandidateTimes> candidates;
  for (const CandidateSamples& samples : chosen.empty() ? result_.candidates : chosen) {
    candidates.push_back({samples.seconds, samples.places});
  }
  const StopReason reason =
      judge_.decide({candidates, chosen.empty() ? result_.batches : batches}, elapsed_seconds);
  if (reason == StopReason::kNotYet) {
    if (rounds_of(result_) / kDisturbedOverAsked >= rule_.max_samples) {
      return StopReason::kMaxSamples;
    }
    if (undisturbed_ < rule_.min_samples && rounds_of(result_) >= rule_.min_samples &&
        rule_.criterion != StopCriterion::kCount && elapsed_seconds >= rule_.budget_seconds) {
      return StopReason::kBudget;
    }
  }
  const bool may_end = rounds_of(result_) >= rule_.min_samples;
  if (reason == StopReason::kNotYet && may_end && regime_.exhausted()) {
    return StopReason::kBudget;
  }
  return reason;
}

/// Return whether disturbed rounds are known and not counted. All count if the method has no
/// readings, if the requested number of samples must be taken, or if other processes, which have
/// other readings, count the same rounds.
bool Sampler::Run::tells_disturbed_rounds() const {
  return rule_.criterion != StopCriterion::kCount && has_readings_ && accord_ == nullptr;
}

std::vector<std::size_t> Sampler::Run::undisturbed_rounds() {
  const HostRecord* const host = tells_disturbed_rounds() ? timer_.host_record() : nullptr;
  for (std::size_t i = disturbed_.size(); host != nullptr && i < host->readings.size(); ++i) {
    disturbed_.push_back(is_disturbed(host->readings[i], host->cores));
  }
  std::vector<std::size_t> found;
  for (std::size_t round = 0; round < rounds_of(result_); ++round) {
    const bool disturbed = std::any_of(
        result_.candidates.begin(), result_.candidates.end(), [&](const CandidateSamples& samples) {
          return host != nullptr && disturbed_[samples.readings[round]];
        });
    if (!disturbed) {
      found.push_back(round);
    }
  }
  return found;
}

/// Discard disturbed rounds if there are enough others. Otherwise keep all, and report the
/// disturbance.
void Sampler::Run::part_disturbed() {
  if (!has_readings_) {
    return;
  }
  const HostRecord* const host = timer_.host_record();
  result_.host = *host;
  result_.host.used_cores = timer_.used_cores();
  std::vector<std::size_t> rounds = undisturbed_rounds();
  if (rounds.size() < std::max(rule_.min_samples, kFewestSamples)) {
    rounds.resize(std::min(rounds_of(result_), rule_.max_samples));
    std::iota(rounds.begin(), rounds.end(), 0);
  }
  const bool all = rounds.size() == rounds_of(result_);
  for (CandidateSamples& samples : result_.candidates) {
    if (!all) {
      for (std::size_t round = 0, next = 0; round < rounds_of(result_); ++round) {
        if (next < rounds.size() && rounds[next] == round) {
          ++next;
        } else {
          samples.discarded.push_back(samples.seconds[round]);
        }
      }
      samples.seconds = at(rounds, samples.seconds);
      samples.places = at(rounds, samples.places);
      samples.readings = at(rounds, samples.readings);
    }
    samples.disturbance = describe_disturbance(*host, samples.readings);
    samples.between_runs = share_between_runs(*host, samples.readings);
  }
  if (!all) {
    result_.batches = at(rounds, result_.batches);
  }
}

void Sampler::Run::run_batch(std::size_t rounds, SampledRounds& series) {
  const double idled_before = regime_.idle_seconds();
  const double idle_clock_hz = idle();
  BatchRecord record{.warming_up = warming_up_,
                     .gap_seconds = regime_.idle_seconds() - idled_before,
                     .idle_clock_hz = idle_clock_hz};
  load(regime_.load_seconds() - batches_.seconds_of(rounds));
  const bool to_be_held = batches_.holds_queue();
  Batch batch = accord_ == nullptr ? batches_.run(rounds) : run_shared(rounds);
  ++batches_run_;
  calls_made_ += rounds * candidates_.size();
  record.held = to_be_held ? std::optional(batch.held) : std::nullopt;
  result_.of_other_threads += batch.notes.of_other_threads;
  if (batch.hold_given_up) {
    set_aside(series);
    expect_overhead(false);
  }
  if (!batch.notes.fault.empty()) {
    tell(std::move(record), batch, "thrown away: " + batch.notes.fault);
    throw_away(std::move(batch.notes.fault));
    return;
  }
  faulty_in_a_row_ = 0;
  if (batch.unordered) {
    tell(std::move(record), batch, "thrown away: work on other streams overlapped other calls");
    set_aside(series);
    batches_.isolate();
    return;
  }
  const BatchFate fate = judge(batch, idle_clock_hz);
  tell(std::move(record), batch, describe(fate, batch.hold_given_up));
  if (fate != BatchFate::kKeep && fate != BatchFate::kSetAside) {
    set_aside(series);
  }
  if (fate == BatchFate::kBeginAnew) {
    warmup_ = regime_.warmup(warmup_);
    begins_anew_ = true;
  }
  if (fate == BatchFate::kKeep || fate == BatchFate::kSetEarlierAside) {
    append(rounds_of_batch(std::move(batch), batches_run_ - 1), series);
  } else {
    append_discarded(std::move(batch.candidates), series);
  }
}

/// Run a batch together with other processes. Of its times, the candidates' seconds are the longest
/// of all processes; activities and clocks are those of this process.
Batch Sampler::Run::run_shared(std::size_t rounds) {
  Batch batch = batches_.run(rounds, [this] { accord_->release(); });
  SharedBatch shared{.seconds = {},
                     .fault = batch.notes.fault,
                     .held = batch.held,
                     .hold_given_up = batch.hold_given_up,
                     .unordered = batch.unordered,
                     .elapsed_seconds = now_seconds() - start_,
                     .time_is_up = supervision_.deadline.passed()};
  for (const CandidateSamples& samples : batch.candidates) {
    shared.seconds.push_back(samples.seconds);
  }
  accord_->share(shared);
  for (std::size_t i = 0; i < batch.candidates.size(); ++i) {
    batch.candidates[i].seconds = shared.seconds[i];
  }
  batch.notes.fault = shared.fault;
  batch.held = shared.held;
  batch.hold_given_up = shared.hold_given_up;
  if (shared.hold_given_up) {
    batches_.give_up_hold("another rank's queue could not be held");
  }
  batch.unordered = shared.unordered;
  shared_clock_ = shared.elapsed_seconds;
  shared_time_is_up_ = shared.time_is_up;
  return batch;
}

/// Faulty samples are dropped completely, not even kept as discarded; another batch follows.
void Sampler::Run::throw_away(std::string fault) {
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

void Sampler::Run::tell(BatchRecord record, const Batch& batch, std::string fate) const {
  if (supervision_.on_batch) {
    fill_in(record, batch);
    record.fate = std::move(fate);
    supervision_.on_batch(record);
  }
}

/// Leave the device idle as long as the regime requires, and return its clock rate afterward, in
/// hertz; NaN if it is unknown, or if there was no idling.
double Sampler::Run::idle() {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const double start = now_seconds();
  const double end = start + std::min(regime_.gap_seconds(), supervision_.deadline.seconds_left());
  double now = start;
  if (now >= end) {
    return kUnknown;
  }
  for (; now < end; now = now_seconds()) {
    const double piece = std::min(end - now, kIdlePieceSeconds);
    hooks_.wait([&] { std::this_thread::sleep_for(std::chrono::duration<double>(piece)); });
    hooks_.poll();
  }
  regime_.idled(now - start);
  double clock_hz = kUnknown;
  if (probe_ != nullptr) {
    hooks_.wait([&] { clock_hz = probe_->idle_clock_hz(); });
  }
  return clock_hz;
}

/// Keep the device busy for that long with untimed calls. It still works on the last ones when the
/// next batch is issued, so the batch follows without a pause.
void Sampler::Run::load(double seconds) {
  // A method that waits for each call would wait for these in its first call, and a long batch is
  // enough load itself.
  if (seconds <= regime_.load_seconds() / 2 || probe_ == nullptr || !timer_.queues_calls()) {
    return;
  }
  const std::size_t rounds = batches_.rounds_in(kLoadPieceSeconds);
  timer_.pause();
  const double end = now_seconds() + std::min(seconds, supervision_.deadline.seconds_left());
  while (now_seconds() < end) {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (Callable* const candidate : candidates_) {
        candidate->prepare();
        candidate->call();
        candidate->discard_result();
      }
    }
    result_.warmup_calls += rounds * candidates_.size();
    probe_->forget();  // its capacity is one batch
    hooks_.wait([&] { probe_->pace(); });
    hooks_.poll();
  }
  timer_.resume();
}

/// Return the regime's decision on a batch. It is not consulted for a batch that the device started
/// too early.
BatchFate Sampler::Run::judge(const Batch& batch, double idle_clock_hz) const {
  if (!batch.held) {
    return BatchFate::kSetAside;
  }
  RegimeBatch seen{idle_clock_hz, {}, batch.wall_seconds};
  for (const CandidateSamples& samples : batch.candidates) {
    seen.clocks_hz.push_back(samples.sm_clocks_hz);
  }
  return regime_.judge(seen);
}

std::size_t Sampler::max_batch(std::size_t candidates) {
  return BatchRunner::kMaxRounds * candidates;
}

Sampler::Sampler(Timer& timer, QueueHold* hold, ClockProbe* probe, Warmup warmup, StopRule rule,
                 HostHooks hooks, RegimeControl* regime, std::function<Overhead(bool)> calibrate)
    : timer_(timer),
      hold_(timer.queues_calls() ? hold : nullptr),
      probe_(probe),
      regime_(regime == nullptr ? as_is_ : *regime),
      warmup_(regime_.warmup(warmup)),
      rule_(rule),
      hooks_(std::move(hooks)),
      calibrate_(std::move(calibrate)) {
  rule_.validate();
  if (!(warmup_.seconds >= 0)) {
    throw std::invalid_argument("warmup must be 0 or more seconds, got " +
                                std::to_string(warmup_.seconds));
  }
}

SamplerResult Sampler::run(std::span<Callable* const> candidates) {
  EarlierCalls none;
  return run(candidates, none);
}

SamplerResult Sampler::run(std::span<Callable* const> candidates, EarlierCalls& earlier) {
  if (candidates.empty()) {
    throw std::invalid_argument("candidates must contain at least one candidate, got none");
  }
  Run run(*this, candidates, earlier);
  try {
    return run.run();
  } catch (const TraceLost&) {
    EarlierCalls calls = run.calls();
    earlier.first_calls = std::move(calls.first_calls);
    earlier.count += calls.count;
    earlier.seconds += calls.seconds;
    throw;
  }
}

}  // namespace convtime
