#pragma once

#include <span>

#include "timing/callable.h"

namespace convtime {

/// One method of timing calls: a class each behind this interface.
class Timer {
 public:
  virtual ~Timer() = default;

  /// Issues each of `calls` once, in this order, so that each can be timed.
  virtual void run(std::span<Callable* const> calls) = 0;

  /// Waits for what run() issued and writes the seconds that each call took.
  virtual void collect(std::span<double> seconds) = 0;

  /// Whether run() leaves the calls queued on the device, so that it makes sense to hold the queue
  /// until all of them are issued.
  virtual bool queues_calls() const = 0;
};

}  // namespace convtime
