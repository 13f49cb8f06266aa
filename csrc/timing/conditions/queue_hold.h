#pragma once

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

}  // namespace convtime
