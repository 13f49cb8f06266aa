#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/step.cuh"

// Behind a step whose blocks left their gradients in a slot of device memory each: their sum, in a
// fixed order, and what is done with it.

namespace convtime::mlp {

constexpr int kGroups = kThreads / kPlaces;

/// The sum over the blocks' slots at a place, in the first kPlaces threads.
template <typename T>
__device__ float4 sum_slots(const Step<T>& step, int slots, std::size_t size, int place) {
  auto* const shared = reinterpret_cast<float4*>(shared_memory());
  const int group = static_cast<int>(threadIdx.x) / kPlaces;
  float4 sum{};
#pragma unroll 8
  for (int slot = group; slot < slots; slot += kGroups) {
    add(sum, step.gradients[slot * size + place]);
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < kGroups; ++other) {
      add(sum, shared[other * kPlaces + threadIdx.x]);
    }
  }
  return sum;
}

/// Behind step_kernel, of training steps on as many blocks as there are slots.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    learn_kernel(const __grid_constant__ Step<T> step, int slots, unsigned* arrived) {
  Progress progress = read_progress(step.learning);
  const int place =
      static_cast<int>(blockIdx.x) * kPlaces + static_cast<int>(threadIdx.x) % kPlaces;
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  bool overflowed = false;
  float loss = 0;
  for (int slot = static_cast<int>(threadIdx.x); slot < slots; slot += kThreads) {
    overflowed |= step.reports[slot].overflowed != 0;
    loss += step.reports[slot].loss;
  }
  if (blockIdx.x == 0) {
    loss = sum_of_block(loss, reinterpret_cast<float*>(shared_memory()));
    if (threadIdx.x == 0) {
      keep_loss(step.learning, progress, loss);
    }
  }
  const bool skipped = __syncthreads_or(step.learning.scaling.enabled && overflowed) != 0;
  if (!skipped) {
    const float4 sum = sum_slots(step, slots, size, place);
    if (threadIdx.x < kPlaces) {
      update_place<W>(step.learning, factors_of(step.learning.rule, progress), place,
                      read_place<W>(step.learning, place), sum);
    }
  }
  __threadfence();
  __syncthreads();  // all have read what the last block changes
  if (threadIdx.x == 0 && atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1) {
    advance(progress, step.learning.scaling, skipped);
    write_progress(step.learning, progress);
  }
}

/// Behind step_kernel, of Objective::kGradient.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ Step<T> step, int slots, T* grad_weights) {
  const int place =
      static_cast<int>(blockIdx.x) * kPlaces + static_cast<int>(threadIdx.x) % kPlaces;
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  const float4 sum = sum_slots(step, slots, size, place);
  if (threadIdx.x < kPlaces) {
    const std::size_t offset = Place<W>::offset(place);
    write_pair(grad_weights + offset, {sum.x, sum.y});
    write_pair(grad_weights + offset + 8 * W, {sum.z, sum.w});
  }
}

}  // namespace convtime::mlp
