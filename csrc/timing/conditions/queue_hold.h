#pragma once

namespace convtime {

/// Keeps the device from starting what is enqueued next, so that short operations run back to back
/// instead of one by one as the host issues them.
class QueueHold {
 public:
  virtual ~QueueHold() = default;

  /// Holds the queue until release(), or for about `seconds` at most, by the device's own clock.
  virtual void hold(double seconds) = 0;

  /// Whether release() ends the hold, so that a long one costs nothing.
  virtual bool ends_early() const = 0;

  /// Lets the queue go on, now or as soon as it can; true if it was held until now. Does nothing
  /// where nothing is held.
  virtual bool release() noexcept = 0;
};

}  // namespace convtime
