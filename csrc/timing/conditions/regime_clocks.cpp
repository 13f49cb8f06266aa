#include "timing/conditions/regime_clocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "timing/judge/statistics.h"

namespace convtime {

std::vector<std::vector<double>> known_clocks(std::span<const std::vector<double>> clocks_hz) {
  std::vector<std::vector<double>> known_hz;
  for (const std::vector<double>& candidate_hz : clocks_hz) {
    std::copy_if(candidate_hz.begin(), candidate_hz.end(),
                 std::back_inserter(known_hz.emplace_back()),
                 [](double clock_hz) { return std::isfinite(clock_hz); });
  }
  return known_hz;
}

bool all_have_clocks(std::span<const std::vector<double>> known_hz) {
  return !known_hz.empty() &&
         std::none_of(known_hz.begin(), known_hz.end(),
                      [](const std::vector<double>& candidate_hz) { return candidate_hz.empty(); });
}

std::vector<double> median_clocks(std::span<const std::vector<double>> known_hz) {
  std::vector<double> medians_hz;
  for (const std::vector<double>& candidate_hz : known_hz) {
    medians_hz.push_back(quantile(candidate_hz, 0.5));
  }
  return medians_hz;
}

std::string in_megahertz(double clock_hz) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f MHz", clock_hz * 1e-6);
  return text.data();
}

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace convtime
