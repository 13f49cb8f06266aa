#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "timing/callable.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// What is to be said of collected calls beside their seconds.
struct CollectionNotes {
  /// Why the seconds, or some of them, are wrong; empty where they are right.
  std::string fault;
  /// Pieces of work that other threads of the process gave the device meanwhile, on their own
  /// account, and that are part of no call.
  std::size_t of_other_threads = 0;
};

/// Of a GPU's timestamps: CUPTI's and those of events (NVIDIA's documents say 0.5 us for these; on
/// an H200 they come in the same steps).
inline constexpr double kDeviceTickSeconds = 32e-9;

/// One method of timing calls: a class each behind this interface.
class Timer {
 public:
  virtual ~Timer() = default;

  /// Issues each of `calls` once, in this order, so that each can be timed.
  virtual void run(std::span<Callable* const> calls) = 0;

  /// Waits for what run() issued and writes the seconds that each call took.
  virtual void collect(std::span<double> seconds) = 0;

  /// What the device did in each call of the last collect(); nothing where the method does not see
  /// it.
  virtual std::vector<std::vector<DeviceActivity>> take_activities() { return {}; }

  /// Of the last collect().
  virtual CollectionNotes take_notes() { return {}; }

  /// From pause() to resume(), calls are made that nobody times.
  virtual void pause() {}
  virtual void resume() {}

  /// Of the clock that the seconds are read from, as far as it matters; 0 where it does not.
  virtual double tick_seconds() const { return 0; }

  /// Whether run() leaves the calls queued on the device, so that it makes sense to hold the queue
  /// until all of them are issued.
  virtual bool queues_calls() const = 0;
};

}  // namespace convtime
