#include "conv/plan_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace convtime::conv {
namespace {

constexpr std::size_t kDefaultCapacity = 10'000;

/// Read once, as in PyTorch.
std::size_t capacity_of_threads() {
  static const std::size_t capacity =
      plan_capacity(std::getenv("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"));
  return capacity;
}

std::uint64_t tick() {
  static std::atomic<std::uint64_t> clock{0};
  return clock.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct ThreadPlans {
  ReadyPlans plans{capacity_of_threads()};
  std::uint64_t generation = choice_table().generation();
};

struct DropUnlessMain {
  void operator()(ThreadPlans* plans) const {
    // The main thread ends with the process, when cuDNN may already be gone and its descriptors can
    // no longer be destroyed. Not a leak, because the process is ending.
    if (gettid() != getpid()) {
      delete plans;
    }
  }
};

}  // namespace

std::size_t plan_capacity(const char* limit) {
  if (limit == nullptr) {
    return kDefaultCapacity;
  }
  try {
    const int number = std::stoi(limit);
    if (number == 0) {
      return std::numeric_limits<std::size_t>::max();
    }
    return static_cast<std::size_t>(std::max(number, 0));
  } catch (const std::logic_error&) {  // exceptions of std::stoi
    std::fprintf(stderr,
                 "convtime: TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT must be an integer (0: no limit, "
                 "negative: keep no plans), got '%s'; each thread keeps %zu plans\n",
                 limit, kDefaultCapacity);
    return kDefaultCapacity;
  }
}

void SharedChoice::count_use() {
  uses.fetch_add(1, std::memory_order_relaxed);
  last_use.store(tick(), std::memory_order_relaxed);
}

std::shared_ptr<SharedChoice> ChoiceTable::find(const PlanKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = choices_.find(key);
  if (found == choices_.end()) {
    return nullptr;
  }
  for (const Kept& kept : found->second) {
    if (kept.for_all) {
      return kept.choice;
    }
  }
  return nullptr;
}

std::shared_ptr<SharedChoice> ChoiceTable::insert(const PlanKey& key, PlanChoice choice,
                                                  bool for_all) {
  const std::lock_guard lock(mutex_);
  std::vector<Kept>& choices = choices_[key];
  const auto same = std::ranges::find_if(
      choices, [&](const Kept& kept) { return kept.choice->choice.tag == choice.tag; });
  if (same != choices.end()) {
    const std::shared_ptr<SharedChoice> found = same->choice;
    if (for_all && !same->for_all) {
      same->for_all = true;
      std::rotate(same, std::next(same), choices.end());  // after the choices that were already for
                                                          // all threads
    }
    return found;
  }
  auto shared = std::make_shared<SharedChoice>(std::move(choice));
  shared->last_use.store(tick(), std::memory_order_relaxed);
  choices.push_back({shared, for_all});
  if (++size_ > capacity_) {
    drop_oldest();
  }
  return shared;
}

void ChoiceTable::drop_oldest() {
  // A linear search instead of a sorted structure: a selection takes far longer, and a use must not
  // lock.
  std::uint64_t oldest_use = std::numeric_limits<std::uint64_t>::max();
  auto oldest_key = choices_.begin();
  std::size_t oldest = 0;
  for (auto entry = choices_.begin(); entry != choices_.end(); ++entry) {
    for (std::size_t i = 0; i < entry->second.size(); ++i) {
      const std::uint64_t use = entry->second[i].choice->last_use.load(std::memory_order_relaxed);
      if (use < oldest_use) {
        oldest_use = use;
        oldest_key = entry;
        oldest = i;
      }
    }
  }
  std::vector<Kept>& choices = oldest_key->second;
  choices.erase(std::next(choices.begin(), static_cast<std::ptrdiff_t>(oldest)));
  if (choices.empty()) {
    choices_.erase(oldest_key);
  }
  --size_;
}

std::vector<ChoiceTable::Entry> ChoiceTable::list() const {
  std::vector<std::pair<std::uint64_t, Entry>> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, choices] : choices_) {
      for (const auto& [choice, for_all] : choices) {
        entries.emplace_back(choice->last_use.load(std::memory_order_relaxed), Entry(key, choice));
      }
    }
  }
  std::ranges::sort(entries, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> sorted;
  for (auto& [last_use, entry] : entries) {
    sorted.push_back(std::move(entry));
  }
  return sorted;
}

void ChoiceTable::clear() {
  const std::lock_guard lock(mutex_);
  choices_.clear();
  size_ = 0;
  generation_.fetch_add(1, std::memory_order_relaxed);
}

ChoiceTable& choice_table() {
  // Choices are small and plan_cache() reports them, so a low limit applies to plans only. Never
  // destroyed: threads may still run convolutions while the process ends.
  static auto* const table = new ChoiceTable(std::max(kDefaultCapacity, capacity_of_threads()));
  return *table;
}

ReadyPlans& plans_of_this_thread() {
  static thread_local const std::unique_ptr<ThreadPlans, DropUnlessMain> own(new ThreadPlans);
  if (own->generation != choice_table().generation()) {
    *own = ThreadPlans();
  }
  return own->plans;
}

void keep_for_graphs(std::shared_ptr<Plan> plan) {
  // Never destroyed: cuDNN may already be gone when the process ends.
  static auto* const mutex = new std::mutex;
  static auto* const plans = new std::vector<std::shared_ptr<Plan>>;
  const std::lock_guard lock(*mutex);
  plans->push_back(std::move(plan));
}

}  // namespace convtime::conv
