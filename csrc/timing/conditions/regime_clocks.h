#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace convtime {

// What the regimes have in common: how they look at clocks, and write of them.

/// Calls before the first batch, which is sized by the shortest of them: the first one may compile.
inline constexpr std::size_t kMinRegimeCalls = 3;

inline constexpr const char* kUnknownClock = "the GPU's clock is not known";

/// Of each candidate, the clocks that are known.
std::vector<std::vector<double>> known_clocks(std::span<const std::vector<double>> clocks_hz);

/// Whether each candidate has a clock that is known, and there is one.
bool all_have_clocks(std::span<const std::vector<double>> known_hz);

/// Of each candidate, the median of its clocks, one at least.
std::vector<double> median_clocks(std::span<const std::vector<double>> known_hz);

/// "1980 MHz"
std::string in_megahertz(double clock_hz);

/// "0.5"
std::string one_decimal(double value);

}  // namespace convtime
