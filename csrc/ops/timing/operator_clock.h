#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/export.h"

namespace convtime::ops {

/// What a thread's calls of PyTorch's operators took.
struct OperatorTimes {
  std::size_t count = 0;      ///< calls, those inside of others included
  std::size_t outermost = 0;  ///< calls that are inside of no other
  double seconds = 0;         ///< of the outermost
  double dispatching = 0;     ///< of all, of each no more than the limit, without calls inside
};

/// Clocks the operators that the thread which makes it calls, until it is stopped by that thread.
class CONVTIME_API OperatorClock {
 public:
  /// `limit_seconds`: what a call takes, however small its tensors are.
  explicit OperatorClock(double limit_seconds);
  ~OperatorClock();
  OperatorClock(const OperatorClock&) = delete;
  OperatorClock& operator=(const OperatorClock&) = delete;

  const OperatorTimes& stop();

  void begin_call();
  void end_call();

 private:
  struct Call {
    std::int64_t start;
    std::int64_t inside;  ///< nanoseconds of the calls in it
  };

  double limit_seconds_;
  std::uint64_t handle_;
  bool stopped_ = false;
  std::vector<Call> calls_;
  OperatorTimes times_;
};

}  // namespace convtime::ops
