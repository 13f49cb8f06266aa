#include "kernels/tutorial/activation_steps.cuh"

namespace convtime::tutorial {
namespace {

struct Plain {
  template <typename Step, typename... Arguments>
  static Kernel<Arguments...> kernel(Build) {
    return plain<Step, Arguments...>;
  }
};

}  // namespace

void launch_activation(const ActivationCall& call, cudaStream_t stream) {
  if (call.build == Build::kFastMath) {
    launch_fast_math_activation(call, stream);
  } else {
    launch_activation_of<Plain>(call, stream);
  }
}

KernelFacts activation_facts(const ActivationCall& call) {
  return call.build == Build::kFastMath ? fast_math_activation_facts(call)
                                        : activation_facts_of<Plain>(call);
}

}  // namespace convtime::tutorial
