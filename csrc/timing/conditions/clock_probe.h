#pragma once

#include <cstdint>
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

  /// Reads the clocks when the device comes to what is enqueued next. Once before each call.
  virtual void stamp() = 0;

  /// Reads them a last time, after all calls of a batch.
  virtual void finish() = 0;

  /// Drops the stamps since the last collect().
  virtual void forget() = 0;

  /// Waits until the device has done what was enqueued before the pace() before the last: between
  /// calls, it keeps the host from running ahead any further.
  virtual void pace() = 0;

  /// The clock's rate without other work: waits for a reading of its own. Not between stamp() and
  /// collect().
  virtual double idle_clock_hz() = 0;

  /// Waits for the stamps since the last collect() and writes the clock's rate around each of the
  /// calls, NaN where it is not known.
  virtual void collect(std::span<double> clocks_hz) = 0;
};

/// A shorter window would make the clock's 32 ns steps count.
inline constexpr std::uint64_t kClockWindowNs = 50'000;

/// The clock's rate in hertz around each of N calls, from N + 1 groups of `group` stamps, one
/// before each call and one after the last. A call's window is widened over its neighbours until
/// it lasts kClockWindowNs. NaN where no multiprocessor was stamped at both ends.
CONVTIME_API std::vector<double> clock_rates_hz(std::span<const ClockStamp> stamps,
                                                std::size_t group);

/// A Callable with a stamp of the clocks before each call, outside of what is timed.
class ClockedCallable final : public Callable {
 public:
  ClockedCallable(Callable& callable, ClockProbe& probe) : callable_(callable), probe_(probe) {}

  void prepare() override {
    callable_.prepare();
    probe_.stamp();
  }
  bool prepares_work() const override { return callable_.prepares_work(); }
  void call() override { callable_.call(); }
  void discard_result() override { callable_.discard_result(); }
  void settle() override { callable_.settle(); }
  std::size_t distinct_calls() const override { return callable_.distinct_calls(); }
  std::size_t place() const override { return callable_.place(); }

 private:
  Callable& callable_;
  ClockProbe& probe_;
};

}  // namespace convtime
