#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/activation.h"
#include "core/export.h"
#include "kernels/element_type.h"
#include "kernels/tutorial/steps.h"
#include "program/nvrtc.h"

namespace convtime::tutorial {

// Kernels to learn from: one operation in several steps, each compiled with several compiler
// settings. The rest of the library does not use them. All steps give the same results. Kernels are
// loaded as load_kernels() does, and launches throw std::runtime_error if CUDA refuses them.

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
  Build build;            ///< one of kActivationBuilds
  Activation activation;  ///< kRelu, kGelu or kGeluTanh
  ElementType type;       ///< kHalf or kFloat
  bool is_gradient;
  const void* input;
  const void* grad_output;  ///< null for the forward pass
  void* output;             ///< or the input's gradient
  std::int64_t count;
};

/// The multiprocessor resources of a kernel.
struct KernelFacts {
  int registers;              ///< per thread
  std::int64_t local_bytes;   ///< per thread: register spills
  std::int64_t shared_bytes;  ///< per block
  int threads;                ///< per block
  int blocks;                 ///< that fit on a multiprocessor at a time
};

CONVTIME_API void launch_pool(const PoolCall& call, cudaStream_t stream);
CONVTIME_API void launch_activation(const ActivationCall& call, cudaStream_t stream);

/// Return the facts of the kernel that would be launched, on the current device.
CONVTIME_API KernelFacts pool_facts(const PoolCall& call);
CONVTIME_API KernelFacts activation_facts(const ActivationCall& call);

/// Return the program of the kernel that would be launched.
CONVTIME_API ProgramSource pool_source(const PoolCall& call);
CONVTIME_API ProgramSource activation_source(const ActivationCall& call);

}  // namespace convtime::tutorial
