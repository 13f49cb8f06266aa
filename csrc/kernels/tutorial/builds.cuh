#pragma once

#include <cstddef>

#include "core/cuda_check.h"
#include "kernels/elements.cuh"
#include "kernels/tutorial/tutorial.h"

namespace convtime::tutorial {

using elements::kThreads;

// A step is a function object, called by each thread. The kernels below differ only in their
// compiler attributes and in their names, which profilers show.

/// Fill a multiprocessor that has room for 2048 threads.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr unsigned kMinBlocks = 2048 / kThreads;
#else
constexpr unsigned kMinBlocks = 1024 / kThreads;
#endif

constexpr int kMaxRegisters = 24;

template <typename Step, typename... Arguments>
__global__ void plain(Arguments... arguments) {
  Step()(arguments...);
}

template <typename Step, typename... Arguments>
__global__ void __launch_bounds__(kThreads) launch_bounds(Arguments... arguments) {
  Step()(arguments...);
}

template <typename Step, typename... Arguments>
__global__ void __launch_bounds__(kThreads, kMinBlocks) min_blocks(Arguments... arguments) {
  Step()(arguments...);
}

template <typename Step, typename... Arguments>
__global__ void __maxnreg__(kMaxRegisters) max_registers(Arguments... arguments) {
  Step()(arguments...);
}

/// Only for files that are compiled with --use_fast_math.
template <typename Step, typename... Arguments>
__global__ void fast_math(Arguments... arguments) {
  Step()(arguments...);
}

template <typename... Arguments>
using Kernel = void (*)(Arguments...);

/// Returns the kernels of all builds that share one file; fast_math has separate files.
struct Attributes {
  template <typename Step, typename... Arguments>
  static Kernel<Arguments...> kernel(Build build) {
    switch (build) {
      case Build::kLaunchBounds:
        return launch_bounds<Step, Arguments...>;
      case Build::kMinBlocks:
        return min_blocks<Step, Arguments...>;
      case Build::kMaxRegisters:
        return max_registers<Step, Arguments...>;
      case Build::kPlain:
      case Build::kFastMath:
        break;
    }
    return plain<Step, Arguments...>;
  }
};

struct FastMath {
  template <typename Step, typename... Arguments>
  static Kernel<Arguments...> kernel(Build) {
    return fast_math<Step, Arguments...>;
  }
};

/// Call function(T()) for the type's T; the steps support two types.
template <typename Function>
void for_step_type(ElementType type, const Function& function) {
  if (type == ElementType::kHalf) {
    function(__half());
  } else {
    function(float());
  }
}

struct Launch {
  std::size_t blocks;
  std::size_t shared_bytes = 0;
};

template <typename... Arguments>
KernelFacts facts_of(Kernel<Arguments...> kernel, const Launch& launch) {
  cudaFuncAttributes attributes{};
  CONVTIME_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  int blocks = 0;
  CONVTIME_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel, static_cast<int>(kThreads), launch.shared_bytes));
  return {attributes.numRegs, static_cast<std::int64_t>(attributes.localSizeBytes),
          static_cast<std::int64_t>(attributes.sharedSizeBytes + launch.shared_bytes),
          static_cast<int>(kThreads), blocks};
}

inline std::size_t blocks_of(std::size_t threads) { return (threads + kThreads - 1) / kThreads; }

/// Load N elements. The first `count`, at least one, come from memory; the last is repeated for the
/// rest. If kWhole, all N are valid, and the address is aligned for one vector load.
template <int N, bool kWhole, typename T>
__device__ elements::Pack<T, N> load_up_to(const T* from, std::size_t count) {
  if constexpr (kWhole) {
    return elements::load(reinterpret_cast<const elements::Pack<T, N>*>(from));
  } else {
    elements::Pack<T, N> result;
#pragma unroll
    for (std::size_t lane = 0; lane < N; ++lane) {
      result.lane[lane] = elements::load(from + min(lane, count - 1));
    }
    return result;
  }
}

/// Store the first `count` elements, or all if kWhole, as in load_up_to.
template <int N, bool kWhole, typename T>
__device__ void store_up_to(T* to, const elements::Pack<T, N>& value, std::size_t count) {
  if constexpr (kWhole) {
    elements::store(reinterpret_cast<elements::Pack<T, N>*>(to), value);
  } else {
#pragma unroll
    for (std::size_t lane = 0; lane < N; ++lane) {
      if (lane < count) {
        elements::store(to + lane, value.lane[lane]);
      }
    }
  }
}

__device__ inline bool is_aligned_to_vectors(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace convtime::tutorial
