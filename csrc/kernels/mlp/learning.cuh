#pragma once

#include "kernels/mlp/loss_scale.h"
#include "kernels/mlp/mlp.h"
#include "kernels/mlp/tensor_cores.cuh"

// Use of the gradients: the optimizers, and the steps that are skipped.

namespace convtime::mlp {

/// MlpState and its update rules, as kernel arguments.
template <typename T>
struct Learning {
  MlpRule rule;
  MlpScaling scaling;
  T* weights;
  float* master;
  void* first;
  void* second;
  std::int64_t* counters;
  float* rates;
  float* losses;
  std::int64_t losses_kept;
};

template <typename T>
Learning<T> learning_of(const MlpRule& rule, const MlpScaling& scaling, const MlpState& state) {
  return {rule,
          scaling,
          static_cast<T*>(state.weights),
          state.master,
          state.first,
          state.second,
          state.counters,
          state.rates,
          state.losses,
          state.losses_kept};
}

/// The values of counters and rates while a kernel runs.
struct Progress {
  std::int64_t steps;
  std::int64_t skipped;
  std::int64_t clean;  // steps since the scale last changed
  float learning_rate;
  float scale;
};

template <typename T>
__device__ Progress read_progress(const Learning<T>& learning) {
  return {learning.counters[0], learning.counters[1], learning.counters[2], learning.rates[0],
          learning.scaling.enabled ? learning.rates[1] : 1.0F};
}

template <typename T>
__device__ void write_progress(const Learning<T>& learning, const Progress& progress) {
  learning.counters[0] = progress.steps;
  learning.counters[1] = progress.skipped;
  learning.counters[2] = progress.clean;
  if (learning.scaling.enabled) {
    learning.rates[1] = progress.scale;
  }
}

/// Update the state after a step, like torch.amp.GradScaler, within bounds.
__device__ inline void advance(Progress& progress, const MlpScaling& scaling, bool skipped) {
  ++progress.steps;
  progress.skipped += skipped ? 1 : 0;
  progress.clean = skipped ? 0 : progress.clean + 1;
  if (scaling.growth_interval > 0) {
    if (skipped) {
      progress.scale = fmaxf(0.5F * progress.scale, kLeastLossScale);
    } else if (progress.clean == scaling.growth_interval) {
      progress.scale = fminf(2 * progress.scale, kMostLossScale);
      progress.clean = 0;
    }
  }
}

// --- Two adjacent values, as floats

template <typename T>
__device__ float2 read_pair(const T* from) {
  return unpack<T>(*reinterpret_cast<const std::uint32_t*>(from));
}
__device__ inline void write_pair(float* to, float2 pair) { *reinterpret_cast<float2*>(to) = pair; }
template <typename T>
__device__ void write_pair(T* to, float2 pair) {
  *reinterpret_cast<std::uint32_t*>(to) = pack<T>(pair.x, pair.y);
}

/// Factors that do not depend on the weight to update.
struct Factors {
  float unscale;
  float learning_rate;
  float first_correction;   // reciprocal of the sum of weights in Adam's first moment
  float second_correction;  // square root of the same for the second moment
};

inline __device__ Factors factors_of(const MlpRule& rule, const Progress& progress) {
  Factors factors{1 / progress.scale, progress.learning_rate, 1, 1};
  if (rule.optimizer != MlpOptimizer::kSgd) {
    const auto updates = static_cast<float>(progress.steps - progress.skipped + 1);
    // Computes 1 - βⁿ without the cancellation for β near 1.
    factors.first_correction = -1 / expm1f(updates * logf(rule.momentum));
    factors.second_correction = 1 / sqrtf(-expm1f(updates * logf(rule.beta2)));
  }
  return factors;
}

/// Return the new value of a weight and update its moments.
__device__ inline float update(const MlpRule& rule, const Factors& factors, float weight,
                               float gradient, float& first, float& second) {
  const float rate = factors.learning_rate;
  gradient *= factors.unscale;
  if (rule.optimizer == MlpOptimizer::kAdamW) {
    weight -= rate * rule.weight_decay * weight;
  } else {
    gradient += rule.weight_decay * weight;
  }
  if (rule.optimizer == MlpOptimizer::kSgd) {
    first = rule.momentum * first + gradient;
    return weight - rate * first;
  }
  first += (1 - rule.momentum) * (gradient - first);
  second = rule.beta2 * second + (1 - rule.beta2) * gradient * gradient;
  const float denominator = sqrtf(second) * factors.second_correction + rule.epsilon;
  return weight - rate * factors.first_correction * first / denominator;
}

/// Two adjacent weights with their moments, as stored between steps: in 32 bits each, or packed in
/// the first word. They are widened only when needed, so that no thread waits for the loads
/// earlier.
struct Kept {
  std::uint32_t rounded;  // two 16-bit weights, if there are 32-bit ones
  uint2 weight;
  uint2 first;
  uint2 second;
};

__device__ inline uint2 read_words(const float* from) {
  return *reinterpret_cast<const uint2*>(from);
}
template <typename T>
__device__ uint2 read_words(const T* from) {
  return {*reinterpret_cast<const std::uint32_t*>(from), 0};
}

/// Widen the result of read_words for an array of that type.
template <typename Stored>
__device__ float2 widen_words(uint2 words) {
  if constexpr (std::is_same_v<Stored, float>) {
    return {__uint_as_float(words.x), __uint_as_float(words.y)};
  } else {
    return unpack<Stored>(words.x);
  }
}

template <typename Stored>
__device__ Kept read_kept(const Stored* weights, const void* first, const void* second,
                          std::size_t offset) {
  Kept kept{0, read_words(weights + offset), {}, {}};
  if (first != nullptr) {
    kept.first = read_words(static_cast<const Stored*>(first) + offset);
  }
  if (second != nullptr) {
    kept.second = read_words(static_cast<const Stored*>(second) + offset);
  }
  return kept;
}

template <typename T>
__device__ Kept read_kept(const Learning<T>& learning, std::size_t offset) {
  if (learning.master == nullptr) {
    return read_kept(learning.weights, learning.first, learning.second, offset);
  }
  Kept kept = read_kept(learning.master, learning.first, learning.second, offset);
  kept.rounded = read_words(learning.weights + offset).x;
  return kept;
}

/// Return a 32-bit weight, or its rounded copy if something other than a step changed that. PyTorch
/// does not count all such changes: not those through .data, nor those by fused optimizers.
__device__ inline float current_weight(float master, float master_rounded, float rounded) {
  return master_rounded == rounded ? master : rounded;
}

/// Update the values loaded from that offset, store them and return the new weights.
template <typename T, typename Stored>
__device__ float2 update_stored(const Learning<T>& learning, const Factors& factors,
                                Stored* weights, float2 weight, const Kept& kept,
                                std::size_t offset, float2 gradients) {
  float2 first = widen_words<Stored>(kept.first);
  float2 second = widen_words<Stored>(kept.second);
  weight.x = update(learning.rule, factors, weight.x, gradients.x, first.x, second.x);
  weight.y = update(learning.rule, factors, weight.y, gradients.y, first.y, second.y);
  write_pair(weights + offset, weight);
  if (learning.first != nullptr) {
    write_pair(static_cast<Stored*>(learning.first) + offset, first);
  }
  if (learning.second != nullptr) {
    write_pair(static_cast<Stored*>(learning.second) + offset, second);
  }
  return weight;
}

/// Update either 32-bit weights with their rounded copy, or the weights alone.
template <typename T>
__device__ void update_kept(const Learning<T>& learning, const Factors& factors, const Kept& kept,
                            std::size_t offset, float2 gradients) {
  if (learning.master != nullptr) {
    float2 weight = widen_words<float>(kept.weight);
    const float2 master_rounded = unpack<T>(pack<T>(weight.x, weight.y));
    const float2 rounded = unpack<T>(kept.rounded);
    weight.x = current_weight(weight.x, master_rounded.x, rounded.x);
    weight.y = current_weight(weight.y, master_rounded.y, rounded.y);
    weight = update_stored(learning, factors, learning.master, weight, kept, offset, gradients);
    write_pair(learning.weights + offset, weight);
  } else {
    update_stored(learning, factors, learning.weights, widen_words<T>(kept.weight), kept, offset,
                  gradients);
  }
}

}  // namespace convtime::mlp
