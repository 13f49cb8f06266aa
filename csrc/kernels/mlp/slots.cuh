#pragma once

#include "kernels/mlp/gradients.cuh"
#include "kernels/mlp/step.cuh"

// Kernels that run after a step whose blocks each wrote their gradients to a slot of device memory:
// they sum the slots in a fixed order and use the sum.

namespace convtime::mlp {

/// Return the place that the thread sums.
template <int W>
int own_place() {
  constexpr int kPlaces = places_of_block(W);
  return static_cast<int>(blockIdx.x) * kPlaces + static_cast<int>(threadIdx.x) % kPlaces;
}

/// Return the sum over the blocks' slots at the thread's place, in the first places_of_block(W)
/// threads.
template <int W, typename T>
float4 sum_slots(const Step<T>& step) {
  constexpr int kPlaces = places_of_block(W);
  constexpr int kGroups = kThreads / kPlaces;
  const int place = own_place<W>();
  const std::size_t size = static_cast<std::size_t>(step.layers) * W * W / 4;
  auto* const shared = reinterpret_cast<float4*>(shared_memory());
  const int group = static_cast<int>(threadIdx.x / kPlaces);
  float4 sum = sum_of<8>(group, step.slots, kGroups,
                         [&](int slot) { return step.gradients[slot * size + place]; });
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < kGroups; ++other) {
      add(sum, shared[other * kPlaces + threadIdx.x]);
    }
  }
  return sum;
}

/// Runs after step_kernel, for training steps with one block per slot.
template <typename T, int W, typename Stored, MlpOptimizer kOptimizer>
__global__ void __launch_bounds__(kThreads, 1) learn_kernel(const __grid_constant__ Step<T> step) {
  constexpr int kPlaces = places_of_block(W);
  const int thread = static_cast<int>(threadIdx.x);
  const int place = own_place<W>();
  const int slots = step.slots;
  wait_for_previous();
  // All loads are in flight at once; each takes as long as the sum.
  Progress progress = *step.progress;
  const Report report = thread < slots ? step.reports[thread] : Report{};
  const KeptPlace kept =
      thread < kPlaces ? read_place<T, W, Stored>(step.learning, place) : KeptPlace{};
  const float4 sum = sum_slots<W>(step);

  bool overflowed = report.overflowed != 0;
  float loss = report.loss;
  for (int slot = thread + kThreads; slot < slots; slot += kThreads) {
    overflowed |= step.reports[slot].overflowed != 0;
    loss += step.reports[slot].loss;
  }
  const bool skipped = __syncthreads_or(step.learning.scaling.enabled && overflowed) != 0;
  if (!skipped && thread < kPlaces) {
    update_place<T, W, Stored, kOptimizer>(
        step.learning, factors_of<kOptimizer>(step.learning.rule, progress), place, kept, sum);
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
__global__ void __launch_bounds__(kThreads, 1) sum_kernel(const __grid_constant__ Step<T> step) {
  const float4 sum = sum_slots<W>(step);
  if (threadIdx.x < places_of_block(W)) {
    T* const to = step.grad_weights + Place<W>::offset(own_place<W>());
    write_pair(to, {sum.x, sum.y});
    write_pair(to + 8 * W, {sum.z, sum.w});
  }
}

}  // namespace convtime::mlp
