#include "timing/conditions/queue_hold.h"

#include <algorithm>

#include "timing/device_traits.h"

namespace convtime {
namespace {

/// Additional launches per call: a clock stamp, a flush and two events.
constexpr double kOwnLaunches = 4;

constexpr std::size_t kFewerRounds = 8;
constexpr std::size_t kMoreRounds = 2;
/// Each stall lengthens the wait before the next attempt to grow: if the stall was systematic,
/// frequent attempts would cost a tenth of a second each.
constexpr std::size_t kLosePatience = 4;
constexpr std::size_t kMaxPatience = 1 << 20;
constexpr std::size_t kStallsToGiveUp = 3;

double queued_launches(const RoundLoad& round) {
  return round.launches == 0 ? round.host_seconds / kDeviceTraits.min_launch_seconds
                             : static_cast<double>(round.launches) +
                                   kOwnLaunches * static_cast<double>(round.calls);
}

}  // namespace

std::size_t HoldPlan::round_limit(const RoundLoad& round) const {
  const double fitting = kDeviceTraits.queued_launches / std::max(queued_launches(round), 1.0);
  return static_cast<std::size_t>(std::clamp(fitting, 1.0, static_cast<double>(limit_)));
}

void HoldPlan::held() {
  ++batches_;
  stalls_in_a_row_ = 0;
  if (++held_in_a_row_ >= patience_) {
    limit_ = std::min(max_rounds_, kMoreRounds * limit_);
    held_in_a_row_ = 0;
  }
}

void HoldPlan::stalled(std::size_t rounds) {
  ++batches_;
  ++stalls_;
  ++stalls_in_a_row_;
  held_in_a_row_ = 0;
  patience_ = std::min(kMaxPatience, kLosePatience * patience_);
  limit_ = std::max<std::size_t>(1, rounds / kFewerRounds);
  last_rounds_ = rounds;
}

bool HoldPlan::given_up() const { return stalls_in_a_row_ >= kStallsToGiveUp && last_rounds_ == 1; }

std::string HoldPlan::reason(const RoundLoad& round) const {
  std::string seen = std::to_string(stalls_) + " of " + std::to_string(batches_) +
                     " batches were still being issued after 0.1 s, the last one of " +
                     std::to_string(round.calls) + (round.calls == 1 ? " call" : " calls");
  if (round.launches > 0) {
    seen += " with " + std::to_string(round.launches) + " launches in all";
  }
  return seen +
         ": a call waits for the GPU, overfills the launch queue, or takes the host that long";
}

}  // namespace convtime
