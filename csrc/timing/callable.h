#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace convtime {

/// A stretch of a device's memory.
struct MemoryBlock {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

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

  /// Decides on what only a call can show. Between the first call and the second, with the device
  /// done, nothing held and nothing captured; may call, untimed.
  virtual void settle() {}

  /// The device's memory that the last call()'s result takes, while it is not discarded.
  virtual std::vector<MemoryBlock> result_blocks() { return {}; }

  /// How many copies of its data calls take in turn.
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
