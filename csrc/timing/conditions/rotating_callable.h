#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "timing/callable.h"

namespace convtime {

/// The same operation on several copies of its data, one after the other, so that a copy has left
/// the cache by the time that it is used again.
class RotatingCallable final : public Callable {
 public:
  explicit RotatingCallable(std::vector<std::unique_ptr<Callable>> copies)
      : copies_(std::move(copies)) {}

  void prepare() override { copies_[next_]->prepare(); }
  bool prepares_work() const override { return copies_.front()->prepares_work(); }
  void call() override {
    current_ = next_;
    next_ = (next_ + 1) % copies_.size();
    copies_[current_]->call();
  }
  void discard_result() override { copies_[current_]->discard_result(); }
  std::size_t distinct_calls() const override { return copies_.size(); }

 private:
  std::vector<std::unique_ptr<Callable>> copies_;
  std::size_t current_ = 0;
  std::size_t next_ = 0;
};

}  // namespace convtime
