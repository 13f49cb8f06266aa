#pragma once

#include <cstddef>

#include "kernels/elements.cuh"

namespace convtime::tutorial {

using elements::kThreads;

// A step is a function object, called by each thread. The kernels below differ only in their
// compiler attributes and in their names, which profilers show.

/// Fill a multiprocessor that has room for 2048 threads.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030
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

/// Only for programs that are compiled with --use_fast_math.
template <typename Step, typename... Arguments>
__global__ void fast_math(Arguments... arguments) {
  Step()(arguments...);
}

/// Load N elements. The first `count`, at least one, come from memory; the last is repeated for the
/// rest. If kWhole, all N are valid, and the address is aligned for one vector load.
template <int N, bool kWhole, typename T>
elements::Pack<T, N> load_up_to(const T* from, std::size_t count) {
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
void store_up_to(T* to, const elements::Pack<T, N>& value, std::size_t count) {
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

}  // namespace convtime::tutorial
