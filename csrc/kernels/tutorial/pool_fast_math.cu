#include "kernels/tutorial/pool_steps.cuh"

namespace convtime::tutorial {

void launch_fast_math_pool(const PoolCall& call, cudaStream_t stream) {
  launch_pool_of<FastMath>(call, stream);
}

KernelFacts fast_math_pool_facts(const PoolCall& call) { return pool_facts_of<FastMath>(call); }

}  // namespace convtime::tutorial
