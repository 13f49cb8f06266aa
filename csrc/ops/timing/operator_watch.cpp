#include "ops/timing/operator_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "timing/clock.h"

namespace convtime::ops {
namespace {

/// The namespaces of the operators that communicate with other ranks.
constexpr std::array<std::string_view, 3> kNamespaces = {
    "c10d::", "_c10d_functional::", "symm_mem::"};

/// Process-wide: callbacks are plain functions, and may run on any thread.
std::atomic<std::uint64_t> operations_seen = 0;

struct Stamps {
  std::mutex mutex;
  std::vector<std::int64_t> nanoseconds;
  std::size_t count = 0;
};

Stamps& stamps() {
  static auto* const stamps = new Stamps;  // never destroyed: threads may outlive static objects
  return *stamps;
}

bool communicates(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  return std::any_of(kNamespaces.begin(), kNamespaces.end(), [&](std::string_view prefix) {
    return name.substr(0, prefix.size()) == prefix;
  });
}

std::unique_ptr<at::ObserverContext> count_operation(const at::RecordFunction& function) {
  if (communicates(function)) {
    ++operations_seen;
  }
  return nullptr;
}

std::unique_ptr<at::ObserverContext> stamp_operation(const at::RecordFunction& function) {
  if (communicates(function)) {
    const std::int64_t now = now_nanoseconds();
    const std::lock_guard lock(stamps().mutex);
    stamps().nanoseconds.push_back(now);
    ++stamps().count;
  }
  return nullptr;
}

std::uint64_t observe(at::RecordFunctionCallback::StartCallback callback) {
  return at::addGlobalCallback(
      at::RecordFunctionCallback(callback).scopes({at::RecordScope::FUNCTION}));
}

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

CollectiveWatch::CollectiveWatch() : handle_(observe(&count_operation)), before_(operations_seen) {}

CollectiveWatch::~CollectiveWatch() { at::removeCallback(handle_); }

bool CollectiveWatch::seen() const { return operations_seen > before_; }

CollectiveStamps::CollectiveStamps() {
  {
    const std::lock_guard lock(stamps().mutex);
    stamps().nanoseconds.clear();
    stamps().count = 0;
  }
  handle_ = observe(&stamp_operation);
}

CollectiveStamps::~CollectiveStamps() { at::removeCallback(handle_); }

std::size_t CollectiveStamps::count() const {
  const std::lock_guard lock(stamps().mutex);
  return stamps().count;
}

std::vector<std::int64_t> CollectiveStamps::take() {
  const std::lock_guard lock(stamps().mutex);
  return std::exchange(stamps().nanoseconds, {});
}

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
