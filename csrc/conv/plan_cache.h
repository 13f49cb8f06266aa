#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "conv/problem.h"
#include "conv/selection.h"
#include "core/export.h"
#include "core/lru_cache.h"

namespace convtime::conv {

/// Return how many plans a thread keeps, given the value of TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT,
/// interpreted as in PyTorch: 10,000 if unset (null), unlimited for 0, none for negative values. A
/// value that is not an integer is reported on stderr and treated as unset.
CONVTIME_API std::size_t plan_capacity(const char* limit);

/// A choice that all threads share.
struct SharedChoice {
  explicit SharedChoice(PlanChoice choice) : choice(std::move(choice)) {}

  /// Record that a plan of this choice has run.
  void count_use();

  const PlanChoice choice;
  std::atomic<std::uint64_t> uses{0};
  std::atomic<std::uint64_t> rebuilds{0};  ///< plans that threads built from this choice and ran
  std::atomic<std::uint64_t> last_use{0};  ///< in ticks of a clock that advances with each use of
                                           ///< any choice
};

/// The choices of all threads; the least recently used ones are dropped. A key has several choices
/// if threads could not agree. Thread-safe.
class CONVTIME_API ChoiceTable {
 public:
  using Entry = std::pair<PlanKey, std::shared_ptr<const SharedChoice>>;

  explicit ChoiceTable(std::size_t capacity) : capacity_(capacity) {}

  /// Return the first choice that is for all threads. Threads without a plan for the key build
  /// theirs from it.
  std::shared_ptr<SharedChoice> find(const PlanKey& key) const;

  /// Add a choice unless the key already has one with that tag, and return the stored choice. It is
  /// for all threads unless it was selected because memory was short, which another thread may
  /// have.
  std::shared_ptr<SharedChoice> insert(const PlanKey& key, PlanChoice choice, bool for_all = true);

  /// List all choices, most recently used last.
  std::vector<Entry> list() const;

  /// Remove all choices; every thread also drops its plans at its next convolution.
  void clear();

  /// Changes with each clear().
  std::uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  struct Kept {
    std::shared_ptr<SharedChoice> choice;
    bool for_all;
  };

  void drop_oldest();

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<PlanKey, std::vector<Kept>, PlanKeyHash> choices_;  // no key has an empty list
  std::size_t size_ = 0;
  std::atomic<std::uint64_t> generation_{0};
};

/// Return the table of the process.
CONVTIME_API ChoiceTable& choice_table();

struct ReadyPlan {
  std::shared_ptr<Plan> plan;
  std::shared_ptr<SharedChoice> choice;
  bool kept_for_graphs = false;
};

using ReadyPlans = LruCache<PlanKey, ReadyPlan, PlanKeyHash>;

/// Return the calling thread's plans: cuDNN's plans must not be shared between threads.
ReadyPlans& plans_of_this_thread();

/// Keep a plan alive until the process ends: a CUDA graph that captured its kernels may be replayed
/// after the plan was dropped and its thread has ended. Thread-safe.
void keep_for_graphs(std::shared_ptr<Plan> plan);

}  // namespace convtime::conv
