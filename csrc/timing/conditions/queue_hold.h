#pragma once

#include <cstddef>
#include <string>

#include "core/export.h"

namespace convtime {

/// Keeps the device from starting the following work, so that short operations run back to back
/// instead of one by one as the host issues them.
class QueueHold {
 public:
  virtual ~QueueHold() = default;

  /// Hold the queue until release(), or for at most about `seconds`, by the device's own clock.
  virtual void hold(double seconds) = 0;

  /// Return whether release() ends the hold, which makes a long hold free.
  virtual bool ends_early() const = 0;

  /// Let the queue continue, now or as soon as possible; returns true if it was held until now. Has
  /// no effect if nothing is held.
  virtual bool release() noexcept = 0;
};

/// A hold ends after this time. Work that is still being issued then waits for the device, or finds
/// its queue full.
inline constexpr double kMaxHoldSeconds = 0.1;

/// The known cost of issuing a round of calls.
struct RoundLoad {
  std::size_t calls = 0;
  std::size_t launches = 0;  ///< by all calls; 0 unless all launches are seen
  double host_seconds = 0;
};

/// Determines how many rounds are issued at once while the queue is held, and whether holding it is
/// still worth trying. A batch stalls if it is still being issued when the hold ends, because it
/// overfills the device's queue or waits for the device.
class CONVTIME_API HoldPlan {
 public:
  explicit HoldPlan(std::size_t max_rounds) : max_rounds_(max_rounds), limit_(max_rounds) {}

  /// Return the maximum number of rounds in a batch, at least one: as many as the queue has room
  /// for, and fewer after a stall.
  std::size_t round_limit(const RoundLoad& round) const;

  /// Record the outcome of a batch.
  void held();
  void stalled(std::size_t rounds);

  /// Return whether three batches in a row stalled, the last of the smallest possible size.
  bool given_up() const;

  /// Return why holding was given up.
  std::string reason(const RoundLoad& round) const;

 private:
  std::size_t max_rounds_;
  std::size_t limit_;
  std::size_t batches_ = 0;
  std::size_t stalls_ = 0;
  std::size_t stalls_in_a_row_ = 0;
  std::size_t held_in_a_row_ = 0;
  std::size_t patience_ = 2;  ///< batches that must be held in a row before batches may grow again
  std::size_t last_rounds_ = 0;
};

}  // namespace convtime
