#include "ops/timing/collective_watch.h"

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <memory>
#include <string_view>

namespace convtime::ops {
namespace {

/// The namespaces of the operators that communicate with other ranks.
constexpr std::array<std::string_view, 3> kNamespaces = {
    "c10d::", "_c10d_functional::", "symm_mem::"};

/// Process-wide: callbacks are plain functions, and may run on any thread.
std::atomic<std::uint64_t> operations_seen = 0;

std::unique_ptr<at::ObserverContext> count_operation(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  for (const std::string_view prefix : kNamespaces) {
    if (name.substr(0, prefix.size()) == prefix) {
      ++operations_seen;
    }
  }
  return nullptr;
}

}  // namespace

CollectiveWatch::CollectiveWatch()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(&count_operation).scopes({at::RecordScope::FUNCTION}))),
      before_(operations_seen) {}

CollectiveWatch::~CollectiveWatch() { at::removeCallback(handle_); }

bool CollectiveWatch::seen() const { return operations_seen > before_; }

}  // namespace convtime::ops
