#include "conv/plan_cache.h"

namespace convtime::conv {

PlanCache& plan_cache_of_this_thread() {
  // PyTorch's own default limit (TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT).
  constexpr std::size_t kCapacity = 10'000;
  static thread_local PlanCache cache(kCapacity);
  return cache;
}

}  // namespace convtime::conv
