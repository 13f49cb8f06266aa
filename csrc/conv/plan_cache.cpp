#include "conv/plan_cache.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace convtime::conv {
namespace {

std::uint64_t tick() {
  static std::atomic<std::uint64_t> clock{0};
  return clock.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct ThreadPlans {
  ReadyPlans plans{kCacheCapacity};
  std::uint64_t generation = choice_table().generation();
};

struct DropUnlessMain {
  void operator()(ThreadPlans* plans) const {
    // The main thread ends with the process, when cuDNN may be gone already and its descriptors
    // cannot be destroyed; what it leaves is no leak.
    if (gettid() != getpid()) {
      delete plans;
    }
  }
};

}  // namespace

void SharedChoice::count_use() {
  uses.fetch_add(1, std::memory_order_relaxed);
  last_use.store(tick(), std::memory_order_relaxed);
}

std::shared_ptr<SharedChoice> ChoiceTable::find(const PlanKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = choices_.find(key);
  return found == choices_.end() ? nullptr : found->second;
}

std::shared_ptr<SharedChoice> ChoiceTable::insert(const PlanKey& key, PlanChoice choice,
                                                  const SharedChoice* refused) {
  auto shared = std::make_shared<SharedChoice>(std::move(choice));
  shared->last_use.store(tick(), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = choices_.try_emplace(key, shared);
  if (!added) {
    if (entry->second.get() != refused) {
      return entry->second;
    }
    entry->second = shared;
  }
  if (choices_.size() > capacity_) {
    // Looked for and not kept in order: a selection takes far longer, and a use must not lock.
    choices_.erase(
        std::min_element(choices_.begin(), choices_.end(), [](const auto& a, const auto& b) {
          return a.second->last_use.load(std::memory_order_relaxed) <
                 b.second->last_use.load(std::memory_order_relaxed);
        }));
  }
  return shared;
}

std::vector<ChoiceTable::Entry> ChoiceTable::list() const {
  std::vector<std::pair<std::uint64_t, Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, choice] : choices_) {
      entries.emplace_back(choice->last_use.load(std::memory_order_relaxed), Entry(key, choice));
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> sorted;
  for (auto& [last_use, entry] : entries) {
    sorted.push_back(std::move(entry));
  }
  return sorted;
}

void ChoiceTable::clear() {
  const std::lock_guard lock(mutex_);
  choices_.clear();
  generation_.fetch_add(1, std::memory_order_relaxed);
}

ChoiceTable& choice_table() {
  // Never destroyed: threads may still convolve while the process ends.
  static auto* const table = new ChoiceTable(kCacheCapacity);
  return *table;
}

ReadyPlans& plans_of_this_thread() {
  static thread_local const std::unique_ptr<ThreadPlans, DropUnlessMain> own(new ThreadPlans);
  if (own->generation != choice_table().generation()) {
    *own = ThreadPlans();
  }
  return own->plans;
}

}  // namespace convtime::conv
