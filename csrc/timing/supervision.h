#pragma once

#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/export.h"
#include "timing/accord.h"
#include "timing/batch_record.h"
#include "timing/clock.h"

namespace convtime {

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
  Accord* accord = nullptr;
};

}  // namespace convtime
