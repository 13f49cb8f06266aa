#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace convtime {

// Code shared by the regimes: evaluation and formatting of clocks.

/// Calls before the first batch, which is sized by their shortest time: the first one may compile.
inline constexpr std::size_t kMinRegimeCalls = 3;

inline constexpr const char* kUnknownClock = "the GPU's clock is not known";

/// Return the known clocks of each candidate.
std::vector<std::vector<double>> known_clocks(std::span<const std::vector<double>> clocks_hz);

/// Return whether each candidate has a known clock, and at least one candidate exists.
bool all_have_clocks(std::span<const std::vector<double>> known_hz);

/// Return the median of each candidate's clocks; each needs at least one clock.
std::vector<double> median_clocks(std::span<const std::vector<double>> known_hz);

/// "1980 MHz"
std::string in_megahertz(double clock_hz);

/// "0.5"
std::string one_decimal(double value);

}  // namespace convtime
