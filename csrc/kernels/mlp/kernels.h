#pragma once

namespace convtime::mlp {

/// The kernels for a type and a width of weights, as CUDA's runtime takes them, so that each type
/// is compiled by itself.
struct Kernels {
  const void* step;     // of Step<T>
  const void* spilled;  // of Step<T>; null where nets of the width always fit on chip
  const void* learn;    // of Step<T>, int slots
  const void* sum;      // of Step<T>, int slots, T* grad_weights
};

template <typename T, int W>
Kernels kernels();

}  // namespace convtime::mlp
