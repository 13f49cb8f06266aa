#include "ops/timing/device_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <utility>

namespace convtime::ops {

std::shared_ptr<void> torch_device_memory(std::size_t bytes) {
  auto memory =
      std::make_shared<c10::DataPtr>(c10::cuda::CUDACachingAllocator::get()->allocate(bytes));
  void* const data = memory->get();
  return {std::move(memory), data};
}

}  // namespace convtime::ops
