#pragma once

#include <cstddef>
#include <string>

#include "core/export.h"

namespace convtime {

/// A hold gives way after this long: what is still being issued then waits for the device, or finds
/// its queue full.
inline constexpr double kMaxHoldSeconds = 0.1;

/// What issuing a round of calls is known to take.
struct RoundLoad {
  std::size_t calls = 0;
  std::size_t launches = 0;  ///< by all of the calls; 0 where not all of them are seen
  double host_seconds = 0;
};

/// How many rounds are issued at once while the queue is held, and whether holding it is still
/// worth trying. A batch that overfills the device's queue, or that waits for the device, is still
/// being issued when the hold gives way: it stalls.
class CONVTIME_API HoldPlan {
 public:
  explicit HoldPlan(std::size_t max_rounds) : max_rounds_(max_rounds), limit_(max_rounds) {}

  /// How many rounds a batch may have, one at least: as many as the queue has room for, and fewer
  /// after a stall.
  std::size_t round_limit(const RoundLoad& round) const;

  /// What became of a batch.
  void held();
  void stalled(std::size_t rounds);

  /// Whether three batches in a row stalled, of which the last one was as small as can be.
  bool given_up() const;

  /// Why it was given up.
  std::string reason(const RoundLoad& round) const;

 private:
  std::size_t max_rounds_;
  std::size_t limit_;
  std::size_t batches_ = 0;
  std::size_t stalls_ = 0;
  std::size_t stalls_in_a_row_ = 0;
  std::size_t held_in_a_row_ = 0;
  std::size_t patience_ = 2;  ///< batches that must be held in a row before they may grow again
  std::size_t last_rounds_ = 0;
};

}  // namespace convtime
