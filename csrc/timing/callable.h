#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace convtime {

/// A block of device memory.
struct MemoryBlock {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

/// The operation to time, which can be issued any number of times.
class Callable {
 public:
  virtual ~Callable() = default;

  /// Prepare the next call(). Timers call this before the timed region.
  virtual void prepare() {}

  /// Return whether prepare() may issue work to a device.
  virtual bool prepares_work() const { return false; }

  /// Issue the operation once. May throw; the timing then ends with that exception.
  virtual void call() = 0;

  /// Drop the result of the last call(). Timers call this outside the timed region.
  virtual void discard_result() {}

  /// Make decisions that need a completed call. Called between the first call and the second, with
  /// the device idle, the queue not held and no capture; may make untimed calls.
  virtual void settle() {}

  /// Return the device memory of the last call()'s result, until it is discarded.
  virtual std::vector<MemoryBlock> result_blocks() { return {}; }

  /// Return the number of data copies through which calls rotate.
  virtual std::size_t distinct_calls() const { return 1; }

  /// Return the placement of the data in the last call().
  virtual std::size_t place() const { return 0; }
};

/// A Callable that forwards everything to another one, which must outlive it. A derived class
/// overrides what it changes.
class ForwardingCallable : public Callable {
 public:
  explicit ForwardingCallable(Callable& callable) : callable_(callable) {}

  void prepare() override { callable_.prepare(); }
  bool prepares_work() const override { return callable_.prepares_work(); }
  void call() override { callable_.call(); }
  void discard_result() override { callable_.discard_result(); }
  void settle() override { callable_.settle(); }
  std::vector<MemoryBlock> result_blocks() override { return callable_.result_blocks(); }
  std::size_t distinct_calls() const override { return callable_.distinct_calls(); }
  std::size_t place() const override { return callable_.place(); }

 private:
  Callable& callable_;
};

/// A Callable made from a C++ function object that returns nothing.
class FunctionCallable final : public Callable {
 public:
  explicit FunctionCallable(std::function<void()> function) : function_(std::move(function)) {}
  void call() override { function_(); }

 private:
  std::function<void()> function_;
};

}  // namespace convtime
