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

/// What is known of collected calls together with their seconds.
struct CollectionNotes {
  /// Why the seconds, or some of them, are wrong; empty where they are right.
  std::string fault;
  /// Pieces of work that other threads of the process gave the device meanwhile, on their own
  /// account, and that are part of no call.
  std::size_t of_other_threads = 0;
  /// Calls that gave the device work which has no record, with the function that did.
  std::vector<std::pair<std::size_t, std::string>> unrecorded{};
};

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

  /// After each candidate's first calls: decides on what depends on how long they take. Returns how
  /// many calls it made to find out.
  virtual std::size_t settle(std::span<Callable* const> /*candidates*/) { return 0; }

  /// How many calls a sample of a candidate is of.
  virtual std::size_t repeats(const Callable& /*candidate*/) const { return 1; }

  /// For each call of the last run(), the index of its reading in host_record(); nothing where the
  /// method has none.
  virtual std::vector<std::size_t> take_readings() { return {}; }

  /// What the operating system did until now, over all runs; null for methods that do not ask.
  virtual const HostRecord* host_record() { return nullptr; }

  /// The cores that the threads which computed are on; nothing where host_record() is null.
  virtual std::vector<int> used_cores() { return {}; }

  /// From pause() to resume(), calls are made that nobody times.
  virtual void pause() {}
  virtual void resume() {}

  /// The step in which seconds come, as far as it matters; 0 where it does not. Known after
  /// settle().
  virtual double tick_seconds() const = 0;

  /// From now on, each call finds the device idle: what the calls issue is not ordered by the
  /// stream that is held.
  virtual void isolate() {}

  /// Whether run() leaves the calls queued on the device, so that it makes sense to hold the queue
  /// until all of them are issued.
  virtual bool queues_calls() const = 0;
};

}  // namespace convtime
