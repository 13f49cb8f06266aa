#include "timing/judge/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "timing/judge/order_statistics.h"

namespace convtime {
namespace {

constexpr double kNanosecond = 1e-9;
/// Start and end of a duration are rounded to nanoseconds.
constexpr double kRounding = 2.5 * kNanosecond;
/// The share of durations that must fit; a clock may be corrected while it is read.
constexpr double kMinFitting = 0.9;
/// The shortest distance between durations is at most this many steps.
constexpr int kMaxStepsApart = 4;

/// Return the shortest distance between durations that differ by more than rounding; 0 if there is
/// none.
double shortest_distance(const std::vector<double>& ordered) {
  double shortest = kInfinity;
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    const double distance = ordered[i] - ordered[i - 1];
    if (distance > kRounding) {
      shortest = std::min(shortest, distance);
    }
  }
  return std::isfinite(shortest) ? shortest : 0;
}

/// Return the mean distance of durations from multiples of a step.
double misfit(std::span<const double> seconds, double step) {
  double sum = 0;
  for (const double duration : seconds) {
    sum += std::abs(duration - step * std::round(duration / step));
  }
  return sum / static_cast<double>(seconds.size());
}

/// Return the step that fits best among those that rounding can turn into `distance`. For
/// neighboring candidate steps, even the multiple for the longest duration differs by less than
/// rounding.
double best_step(std::span<const double> seconds, double distance, double longest) {
  const double change = kNanosecond / 2 * distance / longest;
  double best = distance;
  double least = kInfinity;
  for (double step = distance - kRounding; step <= distance + kRounding; step += change) {
    const double found = misfit(seconds, step);
    if (found < least) {
      least = found;
      best = step;
    }
  }
  return best;
}

bool fits(std::span<const double> seconds, double step) {
  const auto fitting = std::count_if(seconds.begin(), seconds.end(), [&](double duration) {
    return std::abs(duration - step * std::round(duration / step)) <= kRounding;
  });
  return static_cast<double>(fitting) >= kMinFitting * static_cast<double>(seconds.size());
}

}  // namespace

double tick_of(std::span<const double> seconds) {
  const std::vector<double> ordered = sorted(seconds);
  const double distance = shortest_distance(ordered);
  for (int steps_apart = 1; steps_apart <= kMaxStepsApart; ++steps_apart) {
    if (distance / steps_apart <= 2 * kRounding) {
      break;  // anything would fit
    }
    const double step = best_step(seconds, distance / steps_apart, ordered.back());
    if (fits(seconds, step)) {
      return step;
    }
  }
  return kNanosecond;
}

}  // namespace convtime
