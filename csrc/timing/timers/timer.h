#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "timing/callable.h"
#include "timing/judge/host_reading.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// Information on the collected calls, in addition to their seconds.
struct CollectionNotes {
  /// Why the seconds, or some of the seconds, are wrong; empty if they are correct.
  std::string fault;
  /// Activities that other threads of the process issued independently during the calls; they
  /// belong to no call.
  std::size_t of_other_threads = 0;
  /// Calls that issued device work without a record, with the function that issued it.
  std::vector<std::pair<std::size_t, std::string>> unrecorded{};
};

/// Interface of the timing methods, with one class per method.
class Timer {
 public:
  virtual ~Timer() = default;

  /// Issue each of `calls` once, in this order, and prepare to time each.
  virtual void run(std::span<Callable* const> calls) = 0;

  /// Wait for the work that run() issued and write each call's seconds.
  virtual void collect(std::span<double> seconds) = 0;

  /// Return the device's activities in each call of the last collect(); nothing if the method does
  /// not record them.
  virtual std::vector<std::vector<DeviceActivity>> take_activities() { return {}; }

  /// Return the notes of the last collect().
  virtual CollectionNotes take_notes() { return {}; }

  /// Called after each candidate's first calls: make decisions that depend on their duration.
  /// Returns how many calls it made for this.
  virtual std::size_t settle(std::span<Callable* const> /*candidates*/) { return 0; }

  /// Return the number of calls per sample of a candidate.
  virtual std::size_t repeats(const Callable& /*candidate*/) const { return 1; }

  /// Return, for each call of the last run(), the index of its reading in host_record(); nothing if
  /// the method has no readings.
  virtual std::vector<std::size_t> take_readings() { return {}; }

  /// Return the operating system's actions so far, over all runs; null for methods without this
  /// record.
  virtual const HostRecord* host_record() { return nullptr; }

  /// Return the cores of the threads that computed; nothing if host_record() is null.
  virtual std::vector<int> used_cores() { return {}; }

  /// Between pause() and resume(), untimed calls are made.
  virtual void pause() {}
  virtual void resume() {}

  /// Return the step in which seconds are measured; 0 if it is negligible. Known after settle().
  virtual double tick_seconds() const = 0;

  /// From now on, each call starts on an idle device, because its work is not ordered by the held
  /// stream.
  virtual void isolate() {}

  /// Return whether run() leaves the calls queued on the device, so that holding the queue until
  /// all are issued is useful.
  virtual bool queues_calls() const = 0;
};

}  // namespace convtime
