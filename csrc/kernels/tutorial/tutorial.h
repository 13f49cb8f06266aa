#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/activation.h"
#include "core/export.h"
#include "kernels/element_type.h"
#include "kernels/tutorial/steps.h"

namespace convtime::tutorial {

// Kernels to learn from: one operation in several steps, and each step as the compiler can be told
// to build it. Nothing else in the library calls them. All of them give the same results. Launches
// throw std::runtime_error where CUDA refuses them.

struct PoolCall {
  PoolStep step;
  Build build;
  ElementType type;  ///< kHalf or kFloat
  const void* input;
  void* output;
  PoolSizes sizes;
};

struct ActivationCall {
  ActivationStep step;
  Build build;            ///< of kActivationBuilds
  Activation activation;  ///< kRelu, kGelu or kGeluTanh
  ElementType type;       ///< kHalf or kFloat
  bool is_gradient;
  const void* input;
  const void* grad_output;  ///< null if it is no gradient
  void* output;             ///< or the input's gradient
  std::int64_t count;
};

/// What a kernel takes of a multiprocessor.
struct KernelFacts {
  int registers;              ///< of a thread
  std::int64_t local_bytes;   ///< of a thread: what registers had no room for
  std::int64_t shared_bytes;  ///< of a block
  int threads;                ///< of a block
  int blocks;                 ///< that a multiprocessor has room for at a time
};

CONVTIME_API void launch_pool(const PoolCall& call, cudaStream_t stream);
CONVTIME_API void launch_activation(const ActivationCall& call, cudaStream_t stream);

/// Of the kernel that would be launched, on the current device.
CONVTIME_API KernelFacts pool_facts(const PoolCall& call);
CONVTIME_API KernelFacts activation_facts(const ActivationCall& call);

}  // namespace convtime::tutorial
