#include "kernels/tutorial/activation_steps.cuh"

namespace convtime::tutorial {

void launch_fast_math_activation(const ActivationCall& call, cudaStream_t stream) {
  launch_activation_of<FastMath>(call, stream);
}

KernelFacts fast_math_activation_facts(const ActivationCall& call) {
  return activation_facts_of<FastMath>(call);
}

}  // namespace convtime::tutorial
