#include "conv/stored_plans.h"

#include <mutex>
#include <shared_mutex>
#include <utility>

namespace convtime::conv {

StoredPlans::Key StoredPlans::key_of(const Problem& problem, GpuKind gpu) {
  Key key{problem, gpu};
  key.problem.device = 0;
  return key;
}

std::size_t StoredPlans::KeyHash::operator()(const Key& key) const {
  return Hasher(ProblemHash{}(key.problem), key.gpu.architecture, key.gpu.multiprocessors).hash();
}

std::shared_ptr<StoredPlan> StoredPlans::find(const Problem& problem, GpuKind gpu) const {
  const std::shared_lock lock(mutex_);
  const auto found = plans_.find(key_of(problem, gpu));
  return found == plans_.end() ? nullptr : found->second;
}

void StoredPlans::insert(const Problem& problem, GpuKind gpu, std::shared_ptr<StoredPlan> plan) {
  const std::unique_lock lock(mutex_);
  plans_.insert_or_assign(key_of(problem, gpu), std::move(plan));
  size_ = plans_.size();
}

bool StoredPlans::erase(const Problem& problem, GpuKind gpu, const StoredPlan* plan) {
  const std::unique_lock lock(mutex_);
  const auto found = plans_.find(key_of(problem, gpu));
  const bool erased = found != plans_.end() && found->second.get() == plan;
  if (erased) {
    plans_.erase(found);
  }
  size_ = plans_.size();
  return erased;
}

void StoredPlans::clear() {
  const std::unique_lock lock(mutex_);
  plans_.clear();
  size_ = 0;
}

StoredPlans& stored_plans() {
  // Never destroyed: threads may still run convolutions while the process ends.
  static auto* const plans = new StoredPlans;
  return *plans;
}

}  // namespace convtime::conv
