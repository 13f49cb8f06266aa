#include "timing/conditions/clock_probe.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace convtime {
namespace {

using Group = std::span<const ClockStamp>;

/// The stamps of a multiprocessor that two groups share, for the time between the groups; null if
/// they share none.
struct Pair {
  const ClockStamp* begin = nullptr;
  const ClockStamp* end = nullptr;

  double nanoseconds() const {
    return begin == nullptr ? 0 : static_cast<double>(end->nanoseconds - begin->nanoseconds);
  }
};

Pair find_pair(Group begin, Group end) {
  for (const ClockStamp& first : begin) {
    const auto last = std::ranges::find_if(
        end, [&](const ClockStamp& stamp) { return stamp.multiprocessor == first.multiprocessor; });
    if (last != end.end() && last->nanoseconds > first.nanoseconds) {
      return {&first, &*last};
    }
  }
  return {};
}

}  // namespace

std::vector<double> clock_rates_hz(std::span<const ClockStamp> stamps, std::size_t group) {
  if (group == 0 || stamps.size() % group != 0 || stamps.size() < 2 * group) {
    throw std::invalid_argument("clock stamps must be in two or more groups of one size");
  }
  const std::size_t calls = stamps.size() / group - 1;
  const auto group_at = [&](std::size_t i) { return stamps.subspan(i * group, group); };
  std::vector<double> rates_hz(calls, std::numeric_limits<double>::quiet_NaN());
  for (std::size_t call = 0; call < calls; ++call) {
    std::size_t first = call;
    std::size_t last = call + 1;
    Pair pair = find_pair(group_at(first), group_at(last));
    while (pair.nanoseconds() < kClockWindowNs && (first > 0 || last < calls)) {
      first -= first > 0;
      last += last < calls;
      pair = find_pair(group_at(first), group_at(last));
    }
    if (pair.nanoseconds() >= kClockWindowNs) {
      rates_hz[call] =
          static_cast<double>(pair.end->cycles - pair.begin->cycles) / pair.nanoseconds() * 1e9;
    }
  }
  return rates_hz;
}

}  // namespace convtime
