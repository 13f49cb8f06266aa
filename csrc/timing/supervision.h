#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/clock.h"

namespace convtime {

/// The part of a batch on which later decisions depend.
struct SharedBatch {
  std::vector<std::vector<double>> seconds;  ///< samples of each candidate
  std::string fault;                         ///< Collection::fault
  bool held = false;
  bool hold_given_up = false;
  bool unordered = false;
  double elapsed_seconds = 0;  ///< since the run began
  bool time_is_up = false;     ///< whether the deadline passed
};

/// Agreement between processes that sample the same calls at the same time, because the calls
/// communicate. Every process calls these functions in the same order, and each returns the same
/// values in all processes: the decisions of the samplers, and so the numbers of their calls, are
/// then equal. Each function may throw to end the run.
class BatchAgreement {
 public:
  virtual ~BatchAgreement() = default;

  /// Called once, after the first calls. Returns the longest tick of the processes' timers.
  virtual double begin(double tick_seconds) = 0;

  /// Return the number of rounds in the next batch: the smallest proposal.
  virtual std::size_t rounds(std::size_t proposed) = 0;

  /// Called when all calls of a batch are issued and the queue is held. Returns when the queue is
  /// to be released, at the same time in all processes.
  virtual void release() = 0;

  /// Replace a batch by what all processes observed: the largest samples, any fault, the longest
  /// time.
  virtual void share(SharedBatch& batch) = 0;
};

/// The record of a batch, for callers that follow a run. NaN if a clock is unknown.
struct BatchRecord {
  bool warming_up = false;  ///< before the samples that are certainly kept
  std::size_t rounds = 0;   ///< of one call per candidate
  /// Whether the queue was held until all calls were issued; none if it was not supposed to be
  /// held.
  std::optional<bool> held{};
  std::string fate{};      ///< what happened to its samples, and to earlier samples
  double gap_seconds = 0;  ///< device idle time before the batch
  double idle_clock_hz = std::numeric_limits<double>::quiet_NaN();  ///< at the end of the gap
  /// The range of its samples' clocks.
  double lowest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double highest_clock_hz = std::numeric_limits<double>::quiet_NaN();
  double issue_seconds = 0;  ///< host time to issue all calls
  double wall_seconds = 0;   ///< from the first call's issue until all were done
};

/// A time after which no further call is made.
class Deadline {
 public:
  /// No deadline.
  Deadline() = default;
  static Deadline after(double seconds) { return Deadline(now_seconds() + seconds); }

  bool is_set() const { return at_seconds_ < std::numeric_limits<double>::infinity(); }
  bool passed() const { return seconds_left() <= 0; }
  double seconds_left() const { return at_seconds_ - now_seconds(); }

 private:
  explicit Deadline(double at_seconds) : at_seconds_(at_seconds) {}
  double at_seconds_ = std::numeric_limits<double>::infinity();
};

/// The deadline passed before the first sample.
class CONVTIME_API DeadlineError : public std::runtime_error {
 public:
  explicit DeadlineError(const std::string& cause = "")
      : std::runtime_error("the deadline passed before a sample was taken" +
                           (cause.empty() ? cause : ": " + cause)) {}
};

/// How a caller observes and limits a run.
struct Supervision {
  /// Checked between batches and between the first calls. After the deadline, the run ends with the
  /// samples taken so far, fewer than the stop rule requires. Without any sample it throws
  /// DeadlineError.
  Deadline deadline{};
  /// Called after each batch; may throw to end the run. May be empty.
  std::function<void(const BatchRecord&)> on_batch{};
  /// Agreement with other processes that run the same candidates; null if this process decides
  /// alone. Each sample is then the longest of all processes.
  BatchAgreement* agreement = nullptr;
};

}  // namespace convtime
