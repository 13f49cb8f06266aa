#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "timing/callable.h"

namespace convtime {

/// A Callable that records the placement of each of its calls.
class PlaceRecorder final : public ForwardingCallable {
 public:
  using ForwardingCallable::ForwardingCallable;

  void call() override {
    ForwardingCallable::call();
    places_.push_back(place());
  }

  /// Return the placements of the calls since the last take().
  std::vector<std::size_t> take() { return std::exchange(places_, {}); }

 private:
  std::vector<std::size_t> places_;
};

}  // namespace convtime
