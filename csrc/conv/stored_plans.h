#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "conv/engine.h"
#include "conv/problem.h"
#include "core/export.h"

namespace convtime::conv {

/// The kind of GPU that a plan was chosen for.
struct GpuKind {
  std::int32_t architecture = 0;  ///< e.g. 90 for compute capability 9.0
  std::int32_t multiprocessors = 0;

  bool operator==(const GpuKind&) const = default;
};

/// An engine that was chosen beforehand, e.g. by convtime.conv.tune.
struct StoredPlan {
  std::string name;  ///< of its entry, for messages
  Engine engine;
  std::optional<bool> channels_last;  ///< whether the operands are first converted to that layout
                                      ///< (true) or to the contiguous one; none: not at all
  std::atomic<bool> checked{false};   ///< whether it was found to be usable

  StoredPlan(std::string name, Engine engine, std::optional<bool> channels_last)
      : name(std::move(name)), engine(std::move(engine)), channels_last(channels_last) {}
};

/// The stored plans of the process. Thread-safe.
class CONVTIME_API StoredPlans {
 public:
  /// Return whether there are none, without a lock.
  bool empty() const { return size_.load(std::memory_order_relaxed) == 0; }

  std::size_t size() const { return size_.load(std::memory_order_relaxed); }

  /// Return the plan for a problem on a kind of GPU, whichever of these GPUs it is; null if there
  /// is none.
  std::shared_ptr<StoredPlan> find(const Problem& problem, GpuKind gpu) const;

  /// Add or replace the plan of a problem.
  void insert(const Problem& problem, GpuKind gpu, std::shared_ptr<StoredPlan> plan);

  /// Remove the plan of a problem, unless it was replaced or removed before; return whether it was.
  bool erase(const Problem& problem, GpuKind gpu, const StoredPlan* plan);

  void clear();

 private:
  struct Key {
    Problem problem;  ///< of device 0
    GpuKind gpu;

    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  static Key key_of(const Problem& problem, GpuKind gpu);

  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<StoredPlan>, KeyHash> plans_;
  std::atomic<std::size_t> size_{0};
};

CONVTIME_API StoredPlans& stored_plans();

}  // namespace convtime::conv
