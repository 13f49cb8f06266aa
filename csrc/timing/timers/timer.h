#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "timing/callable.h"
#include "timing/judge/host_reading.h"
#include "timing/trace/device_activity.h"

namespace convtime {

/// One call.
struct TimedCall {
  double seconds = 0;
  /// The device's activities; not recorded by all methods.
  std::optional<std::vector<DeviceActivity>> activities{};
  /// The index of its reading in Timer::host_record(), if there is one.
  std::optional<std::size_t> reading{};
  /// Functions that issued device work without a record.
  std::vector<std::string> unrecorded{};
};

/// The calls of a run, in order.
struct Collection {
  std::vector<TimedCall> calls{};
  /// Why the seconds, or some of the seconds, are wrong; empty if they are correct.
  std::string fault{};
  /// Activities that other threads of the process issued independently during the calls; they
  /// belong to no call.
  std::size_t of_other_threads = 0;
};

/// Interface of the timing methods, with one class per method.
class Timer {
 public:
  virtual ~Timer() = default;

  /// Issue each of `calls` once, in this order, and prepare to time each.
  virtual void run(std::span<Callable* const> calls) = 0;

  /// Wait for the work that run() issued, which was that many calls.
  virtual Collection collect(std::size_t calls) = 0;

  /// Called after each candidate's first calls: make decisions that depend on their duration.
  /// Returns how many calls it made for this.
  virtual std::size_t settle(std::span<Callable* const> /*candidates*/) { return 0; }

  /// Return the number of calls per sample of a candidate.
  virtual std::size_t repeats(const Callable& /*candidate*/) const { return 1; }

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
