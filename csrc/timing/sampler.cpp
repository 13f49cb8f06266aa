#include "timing/sampler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "timing/clock.h"
#include "timing/judge/steadiness.h"
#include "timing/regime_batches.h"
#include "timing/round_judge.h"
#include "timing/trace/attribution.h"
#ifdef CONVTIME_WITH_CUDA
#include "program/program.h"
#endif

namespace convtime {
namespace {

/// Return the seconds that convtime has spent compiling kernels.
double compile_seconds() {
#ifdef CONVTIME_WITH_CUDA
  return kernel_loading_seconds();
#else
  return 0;
#endif
}

/// Return whether neither times nor clocks drift, for any candidate. Where all processes have to
/// decide alike, the times that they share decide: a clock is that of one process's device.
bool all_steady(const Series& series, bool by_clocks) {
  const auto steady = [](const std::vector<double>& values) {
    return values.empty() || is_steady(values);
  };
  return std::ranges::all_of(series, [&](const CandidateSamples& candidate) {
    return steady(candidate.seconds()) && (!by_clocks || steady(candidate.sm_clocks_hz()));
  });
}

/// One run of a sampler, from the first call to the result.
class SamplerRun {
 public:
  SamplerRun(std::span<Callable* const> candidates, const SamplerSetup& setup,
             const EarlierCalls& earlier)
      : candidates_(candidates),
        setup_(setup),
        rule_(setup.rule),
        agreement_(setup.supervision.agreement),
        first_calls_(earlier.first_calls),
        judge_(setup.rule, setup.timer, agreement_ == nullptr),
        batches_(candidates, setup, result_),
        regime_(batches_.regime()),
        warmup_(regime_.warmup(setup.warmup)) {
    result_.candidates.resize(candidates.size());
    result_.warmup_calls = earlier.count;
    result_.warmup_seconds = earlier.seconds;
  }

  SamplerResult run() {
    call_untimed();
    prepare_judge();
    warm_up();
    result_.warmup_seconds += now_seconds() - start_;
    take_samples();
    judge_.finish(result_);
    result_.idle_seconds = regime_.idle_seconds();
    result_.clock_tick_seconds = setup_.timer.tick_seconds();
    result_.queue_held = runner().holds_queue();
    result_.not_held_reason = runner().not_held_reason();
    return std::move(result_);
  }

  /// Return the calls so far, of this run and of earlier ones.
  void add_calls(EarlierCalls& earlier) const {
    earlier.first_calls = first_calls_;
    earlier.count += single_calls_ + batches_.calls();
    earlier.seconds += now_seconds() - start_;
  }

 private:
  BatchRunner& runner() { return batches_.runner(); }

  /// Make calls one by one and without a hold: first calls may wait for the device, and their cost
  /// sizes the first batch. So each candidate is called once even if no warm-up is requested.
  void call_untimed() {
    CallCost round;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const CallCost cost = call_alone(i);
      result_.candidates[i].first_call = first_calls_[i];
      round.host_seconds += cost.host_seconds;
      round.wall_seconds += cost.wall_seconds;
      round.launches += cost.launches;
    }
    runner().expect(round);
    // With kCount, the number of calls is the number of requested samples; with an agreement, it
    // must not depend on the times of this process.
    if (rule_.criterion != StopCriterion::kCount && agreement_ == nullptr) {
      single_calls_ += runner().settle();
    }
    result_.warmup_calls += single_calls_;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      result_.candidates[i].repeats = runner().repeats(i);
    }
  }

  /// Make a candidate's calls before the first batch, and return the cost of the fastest.
  CallCost call_alone(std::size_t candidate) {
    const double start = now_seconds();
    CallCost fastest{kInfinity, kInfinity, 0};
    std::size_t calls = 0;
    do {
      const double compiled = compile_seconds();
      const CallCost cost = runner().call_alone(candidate);
      fastest.host_seconds = std::min(fastest.host_seconds, cost.host_seconds);
      fastest.wall_seconds = std::min(fastest.wall_seconds, cost.wall_seconds);
      fastest.launches = cost.launches;  // of the last call: a first call may search for its plan
      if (first_calls_.size() == candidate) {
        first_calls_.push_back({cost.wall_seconds, compile_seconds() - compiled});
      }
      if (calls == 0) {
        candidates_[candidate]->settle();
      }
      ++calls;
      ++single_calls_;
      setup_.hooks.poll();
      if (setup_.supervision.deadline.passed()) {
        throw DeadlineError();
      }
    } while (calls < warmup_.calls || now_seconds() - start < warmup_.seconds);
    return fastest;
  }

  void prepare_judge() {
    const double tick = setup_.timer.tick_seconds();
    judge_.begin(agreement_ == nullptr ? tick : agreement_->begin(tick));
    expect_overhead(runner().holds_queue());
  }

  /// Tell the rule about the method's overhead, unless it has to decide as in other processes,
  /// whose overhead differs.
  void expect_overhead(bool held) {
    if (setup_.calibrate && agreement_ == nullptr) {
      judge_.expect(setup_.calibrate(held));
    }
  }

  /// Warm up, until steady if requested; repeat if the regime changes.
  void warm_up() {
    warming_up_ = true;
    do {
      begins_anew_ = false;
      if (warmup_.steady) {
        result_.steady = become_steady();
      }
    } while (begins_anew_);
    warming_up_ = false;
  }

  /// Sample a series until it is steady, and take its end as samples; return false if it never is.
  bool become_steady() {
    Series series(candidates_.size());
    const double start = batches_.working_seconds();
    double elapsed = 0;
    double series_start = 0;
    std::size_t rounds_tested = 0;
    bool steady = false;
    while (!steady && !begins_anew_ && elapsed < warmup_.max_steady_seconds &&
           !regime_.exhausted() && !batches_.time_is_up()) {
      run_batch(runner().batch_rounds_in(
                    std::min(regime_.batch_seconds(), warmup_.max_steady_seconds - elapsed)),
                series);
      result_.warmup_calls += batches_.last_rounds() * candidates_.size();
      elapsed = batches_.working_seconds() - start;
      const std::size_t taken = rounds_of(series);
      if (elapsed < warmup_.min_steady_seconds || !regime_.settled() ||
          taken < rounds_tested + rounds_tested / 10 + 1) {
        continue;  // testing a long series after each batch would take longer than the batches
      }
      rounds_tested = taken;
      steady = all_steady(series, agreement_ == nullptr);
      if (!steady && elapsed - series_start > warmup_.max_series_seconds &&
          taken / 2 >= kSteadyWindow) {
        forget_first(taken / 2, series);
        series_start += (elapsed - series_start) / 2;
        rounds_tested -= taken / 2;
      }
    }
    if (batches_.controls_regime()) {
      // Samples that the regime set aside are kept as discarded, even if the rest of the series
      // gives no samples.
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        std::vector<double>& discarded = result_.candidates[i].discarded;
        discarded.insert(discarded.end(), series[i].discarded.begin(), series[i].discarded.end());
      }
    }
    if (steady || batches_.time_is_up()) {
      take_over(series);
    }
    return steady;
  }

  /// Take the steady part of a series as samples instead of warm-up. Its end is also taken if there
  /// is no time for other samples.
  void take_over(Series& series) {
    const std::size_t taken = rounds_of(series);
    const std::size_t rounds = std::min(steady_window(taken), rule_.max_samples);
    forget_first(taken - rounds, series);
    append(std::move(series), result_.candidates);
    result_.warmup_calls -= rounds * candidates_.size();
  }

  /// Sample batches until the rule is satisfied, or no time is left.
  void take_samples() {
    double start = batches_.working_seconds();
    result_.stop_reason = decide(0);
    while (result_.stop_reason == StopReason::kNotYet) {
      if (batches_.time_is_up()) {
        time_out();
        return;
      }
      try {
        run_batch(next_rounds(batches_.working_seconds() - start), result_.candidates);
      } catch (const DeadlineError&) {
        if (agreement_ != nullptr) {
          throw;  // the other processes cannot end here as well
        }
        time_out();
        return;
      }
      if (begins_anew_) {
        const double anew = now_seconds();
        warm_up();
        result_.warmup_seconds += now_seconds() - anew;
        start = batches_.working_seconds();  // the budget is only for samples that count
      }
      result_.sampling_seconds = batches_.working_seconds() - start;
      result_.stop_reason = decide(result_.sampling_seconds);
    }
  }

  void run_batch(std::size_t rounds, Series& series) {
    const RegimeBatches::Outcome outcome = batches_.run(rounds, warming_up_, series);
    if (outcome.hold_given_up) {
      expect_overhead(false);
    }
    if (outcome.begins_anew) {
      warmup_ = regime_.warmup(warmup_);
      begins_anew_ = true;
    }
    setup_.hooks.poll();
  }

  /// Return as many rounds as possible until the rule can change its decision.
  std::size_t next_rounds(double elapsed_seconds) {
    if (rounds_of(result_.candidates) == 0 && rule_.first_batch_seconds > 0) {
      return std::min(runner().batch_rounds_in(kInfinity),
                      std::clamp(runner().rounds_in(rule_.first_batch_seconds), rule_.min_samples,
                                 rule_.max_samples));
    }
    const double left = rule_.criterion == StopCriterion::kCount
                            ? regime_.batch_seconds()
                            : rule_.budget_seconds - elapsed_seconds;
    return std::min(runner().batch_rounds_in(std::min(regime_.batch_seconds(), left)),
                    judge_.missing_rounds());
  }

  void time_out() {
    if (rounds_of(result_.candidates) == 0) {
      throw DeadlineError();
    }
    result_.stop_reason = StopReason::kTimeout;
  }

  StopReason decide(double elapsed_seconds) {
    return judge_.decide(result_.candidates, elapsed_seconds, regime_.exhausted());
  }

  std::span<Callable* const> candidates_;
  const SamplerSetup& setup_;
  const StopRule& rule_;
  BatchAgreement* agreement_;
  SamplerResult result_;
  double start_ = now_seconds();
  std::size_t single_calls_ = 0;
  std::vector<FirstCall> first_calls_;  ///< each candidate's, also by an earlier method
  RoundJudge judge_;
  RegimeBatches batches_;
  RegimeControl& regime_;
  Warmup warmup_;
  bool warming_up_ = true;
  bool begins_anew_ = false;  ///< in another regime, whose warm-up follows
};

}  // namespace

SamplerResult sample_rounds(std::span<Callable* const> candidates, const SamplerSetup& setup) {
  EarlierCalls none;
  return sample_rounds(candidates, setup, none);
}

SamplerResult sample_rounds(std::span<Callable* const> candidates, const SamplerSetup& setup,
                            EarlierCalls& earlier) {
  if (candidates.empty()) {
    throw std::invalid_argument("candidates must contain at least one candidate, got none");
  }
  setup.rule.validate();
  if (!(setup.warmup.seconds >= 0)) {
    throw std::invalid_argument("warmup must be 0 or more seconds, got " +
                                std::to_string(setup.warmup.seconds));
  }
  SamplerRun run(candidates, setup, earlier);
  try {
    return run.run();
  } catch (const TraceLost&) {
    run.add_calls(earlier);
    throw;
  }
}

}  // namespace convtime
