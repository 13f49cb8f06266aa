#include "timing/judge/stop_rule.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace convtime {
namespace {

// The parameters of kNoise and kEntropy are nvbench's, so that both end where its users expect it.
// To save time, nvbench checks only every sixteenth or second sample; here, the checks are per
// batch.

/// nvbench does not compute the standard deviation of fewer samples.
constexpr std::size_t kNoiseMinSamples = 5;
constexpr std::size_t kNoiseWindow = 512;
constexpr std::size_t kNoiseMinWindow = 65;
constexpr double kNoiseChange = 0.05;

constexpr std::size_t kEntropyWindow = 299;
constexpr double kEntropyMaxDegrees = 0.048;
constexpr double kEntropyMinR2 = 0.36;
/// In bits. Differences up to this are rounding, and a line fitted to them is meaningless.
constexpr double kEntropyRounding = 1e-9;

/// The verdict is checked repeatedly, and the first certain verdict ends the sampling. Each check
/// is another chance to be certain by accident, mostly the checks with few rounds, whose intervals
/// vary most.
constexpr std::size_t kVerdictMinRounds = 30;

std::span<const double> last(std::span<const double> values, std::size_t count) {
  return values.last(std::min(values.size(), count));
}

/// Return relative_stdev() of the first 5, 6, ... `values`, if it is finite.
std::vector<double> noises_of_prefixes(std::span<const double> values) {
  std::vector<double> noises;
  double mean = 0;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Welford's update: one pass over the samples gives the noise of every prefix.
    const double deviation = values[i] - mean;
    mean += deviation / static_cast<double>(i + 1);
    squares += deviation * (values[i] - mean);
    if (i + 1 >= kNoiseMinSamples && mean > 0) {
      noises.push_back(std::sqrt(squares / static_cast<double>(i)) / mean);
    }
  }
  return noises;
}

/// Return whether the last noises deviate little from the present one.
bool noise_stays(std::span<const double> values) {
  const std::vector<double> noises = noises_of_prefixes(values);
  if (noises.size() < kNoiseMinWindow) {
    return false;
  }
  const std::span<const double> window = last(noises, kNoiseWindow);
  double squares = 0;
  for (const double noise : window) {
    squares += (noise - window.back()) * (noise - window.back());
  }
  const double deviation = std::sqrt(squares / static_cast<double>(window.size() - 1));
  return deviation < kNoiseChange * window.back();
}

/// Return the entropy, in bits, of the first 1, 2, ... `values`: of the histogram with one bin per
/// distinct value.
std::vector<double> entropies_of_prefixes(std::span<const double> values) {
  const auto c_log_c = [](double count) { return count > 0 ? count * std::log2(count) : 0.0; };
  std::vector<double> entropies;
  std::unordered_map<double, double> counts;
  double sum = 0;  // of c log2(c) over the bins; the next value changes one bin
  for (const double value : values) {
    double& count = counts[value];
    sum += c_log_c(count + 1) - c_log_c(count);
    ++count;
    const auto n = static_cast<double>(entropies.size() + 1);
    entropies.push_back(std::log2(n) - sum / n);
  }
  return entropies;
}

/// Return whether a line through the values does not rise and is close to them. As in nvbench, a
/// falling line passes.
bool is_level(std::span<const double> values) {
  if (values.size() < 2) {
    return false;
  }
  const auto n = static_cast<double>(values.size());
  const double mean_x = (n - 1) / 2;
  const double mean_y = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double xx = 0;
  double xy = 0;
  double yy = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - mean_x;
    const double y = values[i] - mean_y;
    xx += x * x;
    xy += x * y;
    yy += y * y;
  }
  if (std::atan(xy / xx) * 180 / std::numbers::pi > kEntropyMaxDegrees) {
    return false;
  }
  const bool constant = yy <= n * kEntropyRounding * kEntropyRounding;
  return constant || xy * xy / (xx * yy) >= kEntropyMinR2;
}

/// Each candidate's samples minus `overhead_seconds`.
class Corrected {
 public:
  Corrected(const JudgedRounds& rounds, double overhead_seconds) : batches_(rounds.batches) {
    for (const CandidateTimes& raw : rounds.candidates) {
      std::vector<double>& corrected = owned_.emplace_back(raw.seconds.begin(), raw.seconds.end());
      for (double& seconds : corrected) {
        seconds -= overhead_seconds;
      }
      candidates_.push_back({corrected, raw.places});
    }
  }

  JudgedRounds get() const { return {candidates_, batches_}; }

 private:
  std::deque<std::vector<double>> owned_;
  std::vector<CandidateTimes> candidates_;
  std::span<const std::size_t> batches_;
};

bool verdicts_are_certain(const JudgedRounds& rounds, const StopRule& rule,
                          const Resolution& resolution) {
  const CandidateTimes& first = rounds.candidates.front();
  if (rounds.candidates.size() < 2 || first.seconds.size() < kVerdictMinRounds) {
    return false;
  }
  const std::span others = rounds.candidates.subspan(1);
  return std::ranges::all_of(others, [&](const CandidateTimes& other) {
    const Estimate ratio = estimate_ratio(other, first, rounds.batches, resolution);
    return judge(ratio.interval, rule.margin, rule.doubt) != Verdict::kUncertain;
  });
}

bool noise_is_small(std::span<const double> values, double tolerance) {
  return values.size() >= kNoiseMinSamples && relative_stdev(values) <= tolerance;
}

bool is_settled(const StopRule& rule, const JudgedRounds& rounds, const Resolution& resolution) {
  const auto all = [&](const auto& predicate) {
    return std::ranges::all_of(rounds.candidates, predicate);
  };
  switch (rule.criterion) {
    case StopCriterion::kInterval:
      return all([&](const CandidateTimes& candidate) {
        const Resolution tick{.tick_seconds = resolution.tick_seconds};
        return relative_noise(estimate_median(candidate, rounds.batches, tick)) <= rule.tolerance;
      });
    case StopCriterion::kNoise:
      return all([&](const CandidateTimes& candidate) {
        return noise_is_small(candidate.seconds, rule.tolerance) || noise_stays(candidate.seconds);
      });
    case StopCriterion::kEntropy:
      return all([](const CandidateTimes& candidate) {
        return is_level(last(entropies_of_prefixes(candidate.seconds), kEntropyWindow));
      });
    case StopCriterion::kVerdict:
      return verdicts_are_certain(rounds, rule, resolution);
    case StopCriterion::kCount:
    case StopCriterion::kBudget:
      return false;
  }
  return false;
}

}  // namespace

void StopRule::validate() const {
  if (min_samples < 1) {
    throw std::invalid_argument("min_samples must be at least 1, got 0");
  }
  if (max_samples < min_samples) {
    throw std::invalid_argument("max_samples must be at least min_samples (" +
                                std::to_string(min_samples) + "), got " +
                                std::to_string(max_samples));
  }
  if (!(budget_seconds > 0)) {
    throw std::invalid_argument("budget must be more than 0 seconds, got " +
                                std::to_string(budget_seconds));
  }
  if (!(tolerance >= 0)) {
    throw std::invalid_argument("tolerance must be 0 or more, got " + std::to_string(tolerance));
  }
  if (!(margin > 0)) {
    throw std::invalid_argument("margin must be more than 0, got " + std::to_string(margin));
  }
}

StopReason StopRule::decide_by_limits(std::size_t samples, double elapsed_seconds) const {
  if (samples < min_samples) {
    return StopReason::kNotYet;
  }
  if (samples >= max_samples) {
    return StopReason::kMaxSamples;
  }
  return criterion != StopCriterion::kCount && elapsed_seconds >= budget_seconds
             ? StopReason::kBudget
             : StopReason::kNotYet;
}

StopReason StopRule::decide(const JudgedRounds& rounds, double elapsed_seconds,
                            const Overhead& overhead, double tick_seconds) const {
  const std::size_t count = rounds.candidates.front().seconds.size();
  const StopReason by_limits = decide_by_limits(count, elapsed_seconds);
  if (by_limits != StopReason::kNotYet || count < min_samples) {
    return by_limits;
  }
  const Resolution resolution{tick_seconds, overhead.uncertainty_seconds};
  const bool settled =
      overhead.seconds == 0
          ? is_settled(*this, rounds, resolution)
          : is_settled(*this, Corrected(rounds, overhead.seconds).get(), resolution);
  return settled ? StopReason::kSettled : StopReason::kNotYet;
}

bool StopJudge::is_due(std::size_t samples) {
  if (samples < looked_at_) {
    looked_at_ = 0;  // samples were set aside
  }
  return samples >= rule_.min_samples && samples >= looked_at_ + looked_at_ / 4 + 1;
}

StopReason StopJudge::decide(const JudgedRounds& rounds, double elapsed_seconds) {
  const std::size_t count = rounds.candidates.front().seconds.size();
  if (!is_due(count)) {
    return rule_.decide_by_limits(count, elapsed_seconds);
  }
  looked_at_ = count;
  return rule_.decide(rounds, elapsed_seconds, overhead_, tick_seconds_);
}

bool depends_on_overhead(StopCriterion criterion) {
  return criterion == StopCriterion::kInterval || criterion == StopCriterion::kNoise ||
         criterion == StopCriterion::kVerdict;
}

}  // namespace convtime
