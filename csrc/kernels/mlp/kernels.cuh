#pragma once

#include "kernels/mlp/kernels.h"
#include "kernels/mlp/on_chip.cuh"
#include "kernels/mlp/slots.cuh"
#include "kernels/mlp/spilled.cuh"

// For the files that compile all kernels of one type.

namespace convtime::mlp {

template <typename T, int W>
Kernels kernels() {
  const void* spilled = nullptr;
  if constexpr (W == kSpilledSizes.width) {
    spilled = reinterpret_cast<const void*>(spilled_kernel<T>);
  }
  return {reinterpret_cast<const void*>(step_kernel<T, W>), spilled,
          reinterpret_cast<const void*>(learn_kernel<T, W>),
          reinterpret_cast<const void*>(sum_kernel<T, W>)};
}

}  // namespace convtime::mlp
