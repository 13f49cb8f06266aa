#include "timing/round_judge.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>

#include "timing/judge/estimate.h"
#include "timing/judge/host_reading.h"

namespace convtime {
namespace {

/// If most samples are disturbed, up to this multiple of the requested maximum is taken.
constexpr std::size_t kDisturbedOverAsked = 4;
/// A median's interval needs this many samples.
constexpr std::size_t kFewestSamples = 10;
/// The share of the budget for which undisturbed samples are awaited: if none came by then, few
/// will.
constexpr double kPatience = 1.0 / 3;

std::vector<std::size_t> first_rounds(std::size_t count) {
  std::vector<std::size_t> rounds(count);
  std::iota(rounds.begin(), rounds.end(), 0);
  return rounds;
}

/// Return the elements at `rounds`; all if `rounds` is empty, or if the values are not known.
template <typename Value>
std::vector<Value> at(std::span<const std::size_t> rounds, std::vector<Value> values) {
  if (rounds.empty() || values.empty()) {
    return values;
  }
  std::vector<Value> chosen;
  for (const std::size_t round : rounds) {
    chosen.push_back(values[round]);
  }
  return chosen;
}

/// The columns of a series by which a rule decides.
class Columns {
 public:
  /// Of all rounds if `rounds` is empty.
  Columns(const Series& series, std::span<const std::size_t> rounds)
      : batches_(at(rounds, series.front().batches())) {
    for (const CandidateSamples& candidate : series) {
      candidates_.push_back({seconds_.emplace_back(at(rounds, candidate.seconds())),
                             places_.emplace_back(at(rounds, candidate.places()))});
    }
  }

  JudgedRounds get() const { return {candidates_, batches_}; }

 private:
  std::deque<std::vector<double>> seconds_;
  std::deque<std::vector<std::size_t>> places_;
  std::vector<std::size_t> batches_;
  std::vector<CandidateTimes> candidates_;
};

}  // namespace

RoundJudge::RoundJudge(const StopRule& rule, Timer& timer, bool decides_alone)
    : rule_(rule),
      timer_(timer),
      judge_(rule),
      has_readings_(timer.host_record() != nullptr),
      leaves_out_disturbed_(rule.criterion != StopCriterion::kCount && has_readings_ &&
                            decides_alone) {}

void RoundJudge::begin(double tick_seconds) {
  judge_.know_tick(tick_seconds);
  judge_.know_doubt(has_readings_ ? kDoubtOfCpuRatios : 0);
}

StopReason RoundJudge::decide(const Series& series, double elapsed_seconds, bool exhausted) {
  const std::size_t taken = rounds_of(series);
  std::vector<std::size_t> rounds;
  counted_ = taken;
  if (leaves_out_disturbed_) {
    rounds = undisturbed_rounds(series);
    const bool wait_for_more = elapsed_seconds < kPatience * rule_.budget_seconds;
    if (rounds.size() >= std::max(rule_.min_samples, kFewestSamples) || wait_for_more) {
      counted_ = rounds.size();
    } else {
      rounds.clear();
    }
  }
  const StopReason reason = judge_.is_due(counted_)
                                ? judge_.decide(Columns(series, rounds).get(), elapsed_seconds)
                                : rule_.decide_by_limits(counted_, elapsed_seconds);
  if (reason != StopReason::kNotYet) {
    return reason;
  }
  if (taken / kDisturbedOverAsked >= rule_.max_samples) {
    return StopReason::kMaxSamples;
  }
  const bool spent = counted_ < rule_.min_samples && rule_.criterion != StopCriterion::kCount &&
                     elapsed_seconds >= rule_.budget_seconds;
  return taken >= rule_.min_samples && (spent || exhausted) ? StopReason::kBudget
                                                            : StopReason::kNotYet;
}

std::size_t RoundJudge::missing_rounds() const {
  return (counted_ < rule_.min_samples ? rule_.min_samples : rule_.max_samples) - counted_;
}

std::vector<std::size_t> RoundJudge::undisturbed_rounds(const Series& series) {
  const HostRecord& host = *timer_.host_record();
  for (std::size_t i = disturbed_.size(); i < host.readings.size(); ++i) {
    disturbed_.push_back(is_disturbed(host.readings[i], host.cores));
  }
  std::vector<std::size_t> undisturbed;
  for (std::size_t round = 0; round < rounds_of(series); ++round) {
    if (std::ranges::none_of(series, [&](const CandidateSamples& candidate) {
          return disturbed_[*candidate.samples[round].reading];
        })) {
      undisturbed.push_back(round);
    }
  }
  return undisturbed;
}

void RoundJudge::finish(SamplerResult& result) {
  if (!has_readings_) {
    return;
  }
  Series& series = result.candidates;
  std::vector<std::size_t> rounds =
      leaves_out_disturbed_ ? undisturbed_rounds(series) : first_rounds(rounds_of(series));
  if (rounds.size() < std::max(rule_.min_samples, kFewestSamples)) {
    rounds = first_rounds(std::min(rounds_of(series), rule_.max_samples));
  }
  keep_rounds(rounds, series);
  result.host = *timer_.host_record();
  result.host.used_cores = timer_.used_cores();
  for (CandidateSamples& candidate : series) {
    const std::vector<std::size_t> readings = column(candidate.samples, &Sample::reading);
    candidate.disturbance = describe_disturbance(result.host, readings);
    candidate.between_runs = share_between_runs(result.host, readings);
  }
}

}  // namespace convtime
