#include "timing/conditions/rotating_callable.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace convtime {
namespace {

/// A result has a different address if the call first allocates an equally large temporary; so up
/// to this many blocks per placement are tried.
constexpr int kMaxBlocksOfResult = 3;
constexpr int kRehearsals = 2;

}  // namespace

RotatingCallable::RotatingCallable(std::vector<std::unique_ptr<Callable>> copies, Rotation rotation)
    : copies_(std::move(copies)), rotation_(std::move(rotation)) {
  if (rotation_.visits.empty()) {
    rotation_.visits.resize(copies_.size());
    std::iota(rotation_.visits.begin(), rotation_.visits.end(), 0);
  }
}

void RotatingCallable::prepare() {
  if (rotation_.warm && settled_) {
    call_untimed();
  }
  make_ready();
}

bool RotatingCallable::prepares_work() const {
  return rotation_.warm || copies_.front()->prepares_work();
}

void RotatingCallable::call() {
  current_ = upcoming();
  if (settled_ || !rotation_.verify) {
    advance();
  }
  copies_[current_]->call();
}

void RotatingCallable::discard_result() {
  if (!settled_ && rotation_.results != nullptr) {
    first_result_ = copies_[current_]->result_blocks();
  }
  copies_[current_]->discard_result();
  if (std::exchange(results_open_, false)) {
    rotation_.results->close(current_);
  }
}

void RotatingCallable::settle() {
  if (std::exchange(settled_, true)) {
    return;
  }
  if (rotation_.verify) {
    if (!copies_may_be_called()) {
      use_original();
      return;
    }
    advance();
  }
  if (rotation_.results != nullptr) {
    place_results();
  }
}

void RotatingCallable::advance() { next_visit_ = (next_visit_ + 1) % rotation_.visits.size(); }

/// Runs last, so that nothing before a call takes the memory reserved for its result.
void RotatingCallable::make_ready() {
  copies_[upcoming()]->prepare();
  if (settled_ && rotation_.results != nullptr) {
    rotation_.results->open(upcoming());
    results_open_ = true;
  }
}

/// Call the next copy without advancing the rotation.
void RotatingCallable::call_untimed() {
  const std::size_t visit = next_visit_;
  make_ready();
  call();
  discard_result();
  next_visit_ = visit;
}

bool RotatingCallable::copies_may_be_called() {
  std::optional<bool> may = rotation_.verify();
  if (!may.has_value()) {
    Callable& called = *copies_[current_];
    called.prepare();
    called.call();
    called.discard_result();
    may = rotation_.verify();
  }
  return may.value_or(false);
}

void RotatingCallable::use_original() {
  copies_.clear();
  copies_.push_back(std::move(rotation_.original));
  rotation_ = {.visits = {0}};
  next_visit_ = 0;
  current_ = 0;
}

void RotatingCallable::place_results() {
  bool lands = first_result_.empty();
  for (int blocks = 0; !lands && blocks < kMaxBlocksOfResult; ++blocks) {
    if (!rotation_.results->add(first_result_)) {
      results_reason_ = "there is not enough memory to reserve for them";
      break;
    }
    lands = true;
    for (int i = 0; lands && i < kRehearsals; ++i) {
      lands = result_lands();
    }
    results_reason_ = lands ? "" : "the call does not use the memory that is reserved for them";
  }
  if (!lands || first_result_.empty()) {
    rotation_.results.reset();
  }
}

/// Return whether an untimed call's result is in its reserved memory.
bool RotatingCallable::result_lands() {
  make_ready();
  call();
  const std::vector<MemoryBlock> blocks = copies_[current_]->result_blocks();
  const bool lands = std::ranges::all_of(blocks, [this](const MemoryBlock& block) {
    return rotation_.results->was_kept(block.address);
  });
  discard_result();
  return lands;
}

}  // namespace convtime
