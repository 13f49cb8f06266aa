#include "timing/conditions/sustained_regime.h"

#include <algorithm>
#include <limits>

#include "timing/conditions/regime_clocks.h"

namespace convtime {

Warmup SustainedRegime::warmup(const Warmup& asked) const {
  Warmup warmup = asked;
  warmup.calls = std::max(asked.calls, kMinRegimeCalls);
  warmup.steady = true;
  warmup.min_steady_seconds = limits_.min_seconds;
  warmup.max_steady_seconds = limits_.max_seconds;
  warmup.max_series_seconds = 2 * limits_.min_seconds;
  return warmup;
}

Outcome<Regime> SustainedRegime::outcome(std::span<const std::vector<double>> clocks_hz,
                                         bool steady) const {
  const std::vector<std::vector<double>> known_hz = known_clocks(clocks_hz);
  if (!all_have_clocks(known_hz)) {
    return {Regime::kAsIs, kUnknownClock};
  }
  if (steady) {
    return {Regime::kSustained, ""};
  }
  double lowest_hz = std::numeric_limits<double>::infinity();
  double highest_hz = 0;
  for (const std::vector<double>& candidate_hz : known_hz) {
    const auto [low, high] = std::minmax_element(candidate_hz.begin(), candidate_hz.end());
    lowest_hz = std::min(lowest_hz, *low);
    highest_hz = std::max(highest_hz, *high);
  }
  return {Regime::kAsIs,
          "times or clocks still drifted after " + one_decimal(limits_.max_seconds) +
              " s of load, or the calls were too few to tell; the samples' clocks are between " +
              in_megahertz(lowest_hz) + " and " + in_megahertz(highest_hz)};
}

}  // namespace convtime
