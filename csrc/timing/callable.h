#pragma once

#include <cstddef>
#include <functional>
#include <utility>

namespace convtime {

/// What is timed: an operation that can be issued any number of times.
class Callable {
 public:
  virtual ~Callable() = default;

  /// Makes ready for the next call(). Timers call it before the timed region.
  virtual void prepare() {}

  /// Whether prepare() may issue work to a device.
  virtual bool prepares_work() const { return false; }

  /// Issues the operation once. May throw; the timing then ends with that exception.
  virtual void call() = 0;

  /// Drops what the last call() returned. Timers call it outside of the timed region.
  virtual void discard_result() {}

  /// Calls until one works on the same data as an earlier one.
  virtual std::size_t distinct_calls() const { return 1; }

  /// Which of the places of its data the last call() worked at.
  virtual std::size_t place() const { return 0; }
};

/// A Callable made of a C++ function object that returns nothing.
class FunctionCallable final : public Callable {
 public:
  explicit FunctionCallable(std::function<void()> function) : function_(std::move(function)) {}
  void call() override { function_(); }

 private:
  std::function<void()> function_;
};

}  // namespace convtime
