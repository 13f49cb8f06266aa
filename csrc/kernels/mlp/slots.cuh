#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/step.cuh"

// Kernels that run after a step whose blocks each wrote their gradients to a slot of device memory:
// they sum the slots in a fixed order and use the sum.

namespace convtime::mlp {

/// Return the sum over the blocks' slots at a place, in the first kPlaces<W> threads.
template <int W, typename T>
__device__ float4 sum_slots(const Step<T>& step, int slots, std::size_t size, int place) {
  constexpr int kGroups = kThreads / kPlaces<W>;
  auto* const shared = reinterpret_cast<float4*>(shared_memory());
  const int group = static_cast<int>(threadIdx.x / kPlaces<W>);
  float4 sum = sum_of<8>(group, slots, kGroups,
                         [&](int slot) { return step.gradients[slot * size + place]; });
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < kGroups; ++other) {
      add(sum, shared[other * kPlaces<W> + threadIdx.x]);
    }
  }
  return sum;
}

/// Runs after step_kernel, for training steps with one block per slot.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads, 1)
    learn_kernel(const __grid_constant__ Step<T> step, int slots) {
  const int thread = static_cast<int>(threadIdx.x);
  const int place = static_cast<int>(blockIdx.x) * kPlaces<W> + thread % kPlaces<W>;
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  wait_for_previous();
  // All loads are in flight at once; each takes as long as the sum.
  Progress progress = *step.progress;
  const Report report = thread < slots ? step.reports[thread] : Report{};
  const KeptPlace kept = thread < kPlaces<W> ? read_place<W>(step.learning, place) : KeptPlace{};
  const float4 sum = sum_slots<W>(step, slots, size, place);

  bool overflowed = report.overflowed != 0;
  float loss = report.loss;
  for (int slot = thread + kThreads; slot < slots; slot += kThreads) {
    overflowed |= step.reports[slot].overflowed != 0;
    loss += step.reports[slot].loss;
  }
  const bool skipped = __syncthreads_or(step.learning.scaling.enabled && overflowed) != 0;
  if (!skipped && thread < kPlaces<W>) {
    update_place<W>(step.learning, factors_of(step.learning.rule, progress), place, kept, sum);
  }
  if (blockIdx.x == 0) {
    loss = sum_of_block(loss, reinterpret_cast<float*>(shared_memory()));
    if (thread == 0) {
      keep_loss(step.learning, progress, loss);
      advance(progress, step.learning.scaling, skipped);
      write_progress(step.learning, progress);
    }
  }
}

/// Runs after step_kernel with Objective::kGradient.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads, 1)
    sum_kernel(const __grid_constant__ Step<T> step, int slots, T* grad_weights) {
  const int place =
      static_cast<int>(blockIdx.x) * kPlaces<W> + static_cast<int>(threadIdx.x % kPlaces<W>);
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  const float4 sum = sum_slots<W>(step, slots, size, place);
  if (threadIdx.x < kPlaces<W>) {
    const std::size_t offset = Place<W>::offset(place);
    write_pair(grad_weights + offset, {sum.x, sum.y});
    write_pair(grad_weights + offset + 8 * W, {sum.z, sum.w});
  }
}

}  // namespace convtime::mlp
