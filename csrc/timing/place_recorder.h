#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "timing/callable.h"

namespace convtime {

/// A Callable that records the placement of each of its calls.
class PlaceRecorder final : public Callable {
 public:
  explicit PlaceRecorder(Callable& callable) : callable_(callable) {}

  void prepare() override { callable_.prepare(); }
  bool prepares_work() const override { return callable_.prepares_work(); }
  void call() override {
    callable_.call();
    places_.push_back(callable_.place());
  }
  void discard_result() override { callable_.discard_result(); }
  void settle() override { callable_.settle(); }
  std::vector<MemoryBlock> result_blocks() override { return callable_.result_blocks(); }
  std::size_t distinct_calls() const override { return callable_.distinct_calls(); }
  std::size_t place() const override { return callable_.place(); }

  /// Return the placements of the calls since the last take().
  std::vector<std::size_t> take() { return std::exchange(places_, {}); }

 private:
  Callable& callable_;
  std::vector<std::size_t> places_;
};

}  // namespace convtime
