#include "kernels/tutorial/pool_steps.cuh"

namespace convtime::tutorial {

void launch_pool(const PoolCall& call, cudaStream_t stream) {
  if (call.build == Build::kFastMath) {
    launch_fast_math_pool(call, stream);
  } else {
    launch_pool_of<Attributes>(call, stream);
  }
}

KernelFacts pool_facts(const PoolCall& call) {
  return call.build == Build::kFastMath ? fast_math_pool_facts(call)
                                        : pool_facts_of<Attributes>(call);
}

}  // namespace convtime::tutorial
