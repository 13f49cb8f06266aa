#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/export.h"

namespace convtime::ops {

/// Counts the operations of torch.distributed (collectives, sends and receives) that any thread of
/// the process dispatches during its lifetime. Any thread, because autograd's threads issue the
/// operations of a backward pass.
class CONVTIME_API CollectiveWatch {
 public:
  CollectiveWatch();
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  bool seen() const;

 private:
  std::uint64_t handle_;
  std::uint64_t before_;
};

/// The times at which operations of torch.distributed begin, on any thread of the process, by
/// now_nanoseconds(). Only one object can exist at a time.
class CONVTIME_API CollectiveStamps {
 public:
  CollectiveStamps();
  ~CollectiveStamps();
  CollectiveStamps(const CollectiveStamps&) = delete;
  CollectiveStamps& operator=(const CollectiveStamps&) = delete;

  /// Return the number of operations so far; may be called from any thread.
  std::size_t count() const;

  /// Return the times since the last take(), in order.
  std::vector<std::int64_t> take();

 private:
  std::uint64_t handle_;
};

/// The times of a thread's calls of PyTorch operators.
struct OperatorTimes {
  std::size_t count = 0;      ///< calls, including nested ones
  std::size_t outermost = 0;  ///< calls that are not nested in another call
  double seconds = 0;         ///< total time of the outermost calls
  double dispatching = 0;     ///< total time without nested calls, with each call capped at the
                              ///< limit
};

/// Times the operators that the constructing thread calls, until that thread stops it.
class CONVTIME_API OperatorClock {
 public:
  /// `limit_seconds`: the time of a call with the smallest tensors.
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
    std::int64_t inside;  ///< nanoseconds of nested calls
  };

  double limit_seconds_;
  std::uint64_t handle_;
  bool stopped_ = false;
  std::vector<Call> calls_;
  OperatorTimes times_;
};

}  // namespace convtime::ops
