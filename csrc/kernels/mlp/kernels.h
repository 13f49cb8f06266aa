#pragma once

namespace convtime::mlp {

/// Pointers to the kernels for a type and a width of weights, for CUDA's launch functions. With
/// them, each type is compiled in a separate file.
struct Kernels {
  const void* step;     // takes Step<T>
  const void* spilled;  // takes Step<T>; null if nets of this width always fit on chip
  const void* learn;    // takes Step<T>, int slots
  const void* sum;      // takes Step<T>, int slots, T* grad_weights
};

template <typename T, int W>
Kernels kernels();

/// Return what takes the place of Kernels::spilled on devices of compute capability 9.0, if there
/// is code for sm_90a.
template <typename T>
const void* spilled_by_warpgroups();

}  // namespace convtime::mlp
