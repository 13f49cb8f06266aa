#include "ops/timing/collective_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
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

}  // namespace convtime::ops
