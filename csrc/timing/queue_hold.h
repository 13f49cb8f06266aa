#pragma once

namespace convtime {

/// Keeps the device from starting what is enqueued next, so that short operations run back to back
/// instead of one by one as the host issues them.
class QueueHold {
 public:
  virtual ~QueueHold() = default;

  /// Holds the queue for `seconds`, from now on.
  virtual void hold(double seconds) = 0;

  /// Whether the device has got past the last hold().
  virtual bool released() const = 0;
};

}  // namespace convtime
