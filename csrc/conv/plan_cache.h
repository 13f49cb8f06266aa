#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "conv/policy.h"
#include "conv/selection.h"
#include "core/export.h"
#include "core/lru_cache.h"

namespace convtime::conv {

/// How many plans a thread keeps, by what TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT says as PyTorch reads
/// it: 10,000 where it is not set (null), all for 0, and none for what is below. What is no number
/// is said on stderr, and taken as not set.
CONVTIME_API std::size_t plan_capacity(const char* limit);

/// A choice as all threads share it.
struct SharedChoice {
  explicit SharedChoice(PlanChoice choice) : choice(std::move(choice)) {}

  /// Notes that a plan of this choice has run.
  void count_use();

  const PlanChoice choice;
  std::atomic<std::uint64_t> uses{0};
  std::atomic<std::uint64_t> rebuilds{0};  ///< plans that threads built of it, and ran
  std::atomic<std::uint64_t> last_use{0};  ///< by a clock that ticks with each use of any choice
};

/// The choices of all threads; the ones that were not used for longest are dropped. A key has more
/// than one where threads could not agree. Thread-safe.
class CONVTIME_API ChoiceTable {
 public:
  using Entry = std::pair<PlanKey, std::shared_ptr<const SharedChoice>>;

  explicit ChoiceTable(std::size_t capacity) : capacity_(capacity) {}

  /// What threads that have no plan for the key are to build theirs of: the first that is for all.
  std::shared_ptr<SharedChoice> find(const PlanKey& key) const;

  /// The key's choice with that tag: this one, unless there is one already. It is for all threads
  /// unless it was made for want of memory, which another thread may have.
  std::shared_ptr<SharedChoice> insert(const PlanKey& key, PlanChoice choice, bool for_all = true);

  /// The most recently used last.
  std::vector<Entry> list() const;

  /// Makes every thread drop its plans, too, with its next convolution.
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
  std::unordered_map<PlanKey, std::vector<Kept>, PlanKeyHash> choices_;  // no key has none
  std::size_t size_ = 0;
  std::atomic<std::uint64_t> generation_{0};
};

/// That of the process.
CONVTIME_API ChoiceTable& choice_table();

struct ReadyPlan {
  std::shared_ptr<Plan> plan;
  std::shared_ptr<SharedChoice> choice;
  bool kept_for_graphs = false;
};

using ReadyPlans = LruCache<PlanKey, ReadyPlan, PlanKeyHash>;

/// The calling thread's plans: cuDNN's plans must not be shared between threads.
ReadyPlans& plans_of_this_thread();

/// Keeps a plan as long as the process lives: a CUDA graph that its kernels were captured into may
/// be replayed when the plan is dropped and its thread gone. Thread-safe.
void keep_for_graphs(std::shared_ptr<Plan> plan);

}  // namespace convtime::conv
