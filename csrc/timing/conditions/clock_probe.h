#pragma once

#include <span>
#include <vector>

#include "core/clock_stamp.h"
#include "core/export.h"
#include "timing/callable.h"

namespace convtime {

/// Reads the rate of the device's clock while it works.
class ClockProbe {
 public:
  virtual ~ClockProbe() = default;

  /// Enqueue a reading of the clocks. Call this once before each call.
  virtual void stamp() = 0;

  /// Read the clocks a last time, after all calls of a batch.
  virtual void finish() = 0;

  /// Drop the stamps since the last collect().
  virtual void forget() = 0;

  /// Wait until the device has done the work enqueued before the second-to-last pace(). Between
  /// calls, this limits how far the host runs ahead.
  virtual void pace() = 0;

  /// Return the clock's rate without other work; waits for a separate reading. Do not call this
  /// between stamp() and collect().
  virtual double idle_clock_hz() = 0;

  /// Wait for the stamps since the last collect() and write the clock's rate around each call, NaN
  /// if it is unknown.
  virtual void collect(std::span<double> clocks_hz) = 0;
};

/// Return the clock's rate in hertz around each of N calls, from N + 1 groups of `group` stamps:
/// one before each call and one after the last. A call's window is extended over its neighbors
/// until it lasts kClockWindowNs. NaN if no multiprocessor was stamped at both ends.
CONVTIME_API std::vector<double> clock_rates_hz(std::span<const ClockStamp> stamps,
                                                std::size_t group);

/// A Callable that stamps the clocks before each call, outside the timed region.
class ClockedCallable final : public ForwardingCallable {
 public:
  ClockedCallable(Callable& callable, ClockProbe& probe)
      : ForwardingCallable(callable), probe_(probe) {}

  void prepare() override {
    ForwardingCallable::prepare();
    probe_.stamp();
  }

 private:
  ClockProbe& probe_;
};

}  // namespace convtime
