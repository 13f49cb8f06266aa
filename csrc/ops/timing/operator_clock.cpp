#include "ops/timing/operator_clock.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "timing/clock.h"

namespace convtime::ops {
namespace {

constexpr std::size_t kNested = 64;

/// Per thread, because callbacks are plain functions.
thread_local OperatorClock* active = nullptr;

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction&) {
  if (active != nullptr) {
    active->begin_call();
  }
  return nullptr;
}

void end_call(const at::RecordFunction&, at::ObserverContext*) {
  if (active != nullptr) {
    active->end_call();
  }
}

}  // namespace

OperatorClock::OperatorClock(double limit_seconds) : limit_seconds_(limit_seconds) {
  if (active != nullptr) {
    throw std::runtime_error("OperatorClock is already active in this thread");
  }
  calls_.reserve(kNested);
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&convtime::ops::begin_call, &convtime::ops::end_call)
          .scopes({at::RecordScope::FUNCTION}));
  active = this;
}

OperatorClock::~OperatorClock() { stop(); }

const OperatorTimes& OperatorClock::stop() {
  if (!stopped_) {
    stopped_ = true;
    active = nullptr;
    at::removeCallback(handle_);
  }
  return times_;
}

void OperatorClock::begin_call() { calls_.push_back({now_nanoseconds(), 0}); }

void OperatorClock::end_call() {
  if (calls_.empty()) {
    return;  // the call began before the clock
  }
  const Call call = calls_.back();
  calls_.pop_back();
  const std::int64_t nanoseconds = now_nanoseconds() - call.start;
  const double own = 1e-9 * static_cast<double>(nanoseconds - call.inside);
  ++times_.count;
  times_.dispatching += std::min(own, limit_seconds_);
  if (calls_.empty()) {
    ++times_.outermost;
    times_.seconds += 1e-9 * static_cast<double>(nanoseconds);
  } else {
    calls_.back().inside += nanoseconds;
  }
}

}  // namespace convtime::ops
