#pragma once

#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/export.h"
#include "timing/batch_record.h"
#include "timing/clock.h"

namespace convtime {

/// A time after which no further call is made.
class Deadline {
 public:
  /// Never.
  Deadline() = default;
  static Deadline after(double seconds) { return Deadline(now_seconds() + seconds); }

  bool is_set() const { return at_seconds_ < std::numeric_limits<double>::infinity(); }
  bool passed() const { return seconds_left() <= 0; }
  double seconds_left() const { return at_seconds_ - now_seconds(); }

 private:
  explicit Deadline(double at_seconds) : at_seconds_(at_seconds) {}
  double at_seconds_ = std::numeric_limits<double>::infinity();
};

/// A deadline passed before there was a sample.
class CONVTIME_API DeadlineError : public std::runtime_error {
 public:
  explicit DeadlineError(const std::string& cause = "")
      : std::runtime_error("the deadline passed before a sample was taken" +
                           (cause.empty() ? cause : ": " + cause)) {}
};

/// How a caller keeps a run in sight and in bounds.
struct Supervision {
  /// Looked at between batches, and between the first calls: the run then ends with the samples
  /// that there are, fewer than the stop rule asks for. Without any it throws DeadlineError.
  Deadline deadline{};
  /// Told of each batch after it, and may throw to end the run; empty where nobody listens.
  std::function<void(const BatchRecord&)> on_batch{};
};

}  // namespace convtime
