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

// PyTorch's own default limit (TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT), for choices as for plans.
inline constexpr std::size_t kCacheCapacity = 10'000;

/// A choice as all threads share it.
struct SharedChoice {
  explicit SharedChoice(PlanChoice choice) : choice(std::move(choice)) {}

  /// Notes that a plan of this choice has run.
  void count_use();

  const PlanChoice choice;
  std::atomic<std::uint64_t> uses{0};
  std::atomic<std::uint64_t> last_use{0};  ///< by a clock that ticks with each use of any choice
};

/// The choices of all threads; the ones that were not used for longest are dropped. Thread-safe.
class CONVTIME_API ChoiceTable {
 public:
  using Entry = std::pair<PlanKey, std::shared_ptr<const SharedChoice>>;

  explicit ChoiceTable(std::size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<SharedChoice> find(const PlanKey& key) const;

  /// Adds the key's choice, or replaces `refused`, and returns it; another one that is there
  /// already, since a thread was faster, stays and is returned.
  std::shared_ptr<SharedChoice> insert(const PlanKey& key, PlanChoice choice,
                                       const SharedChoice* refused = nullptr);

  /// The most recently used last.
  std::vector<Entry> list() const;

  /// Makes every thread drop its plans, too, with its next convolution.
  void clear();

  /// Changes with each clear().
  std::uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<PlanKey, std::shared_ptr<SharedChoice>, PlanKeyHash> choices_;
  std::atomic<std::uint64_t> generation_{0};
};

/// That of the process.
CONVTIME_API ChoiceTable& choice_table();

struct ReadyPlan {
  Plan plan;
  std::shared_ptr<SharedChoice> choice;
};

using ReadyPlans = LruCache<PlanKey, ReadyPlan, PlanKeyHash>;

/// The calling thread's plans: cuDNN's plans must not be shared between threads.
ReadyPlans& plans_of_this_thread();

}  // namespace convtime::conv
