#pragma once

#include "kernels/mlp/loss_scale.h"
#include "kernels/mlp/step.h"
#include "kernels/mlp/tensor_cores.cuh"

// Use of the gradients: the optimizers, and the steps that are skipped.

namespace convtime::mlp {

inline Progress read_progress(const Learning& learning) {
  return {learning.counters[0], learning.counters[1], learning.counters[2], learning.rates[0],
          learning.scaling.enabled ? learning.rates[1] : 1.0F};
}

inline void write_progress(const Learning& learning, const Progress& progress) {
  learning.counters[0] = progress.steps;
  learning.counters[1] = progress.skipped;
  learning.counters[2] = progress.clean;
  if (learning.scaling.enabled) {
    learning.rates[1] = progress.scale;
  }
}

/// Update the state after a step, like torch.amp.GradScaler, within bounds.
inline void advance(Progress& progress, const MlpScaling& scaling, bool skipped) {
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

inline void write_pair(float* to, float2 pair) { *reinterpret_cast<float2*>(to) = pair; }
template <typename T>
void write_pair(T* to, float2 pair) {
  *reinterpret_cast<std::uint32_t*>(to) = pack<T>(pair.x, pair.y);
}

/// Factors that do not depend on the weight to update.
struct Factors {
  float unscale;
  float learning_rate;
  float first_correction;   // reciprocal of the sum of weights in Adam's first moment
  float second_correction;  // square root of the same for the second moment
};

template <MlpOptimizer kOptimizer>
Factors factors_of(const MlpRule& rule, const Progress& progress) {
  Factors factors{1 / progress.scale, progress.learning_rate, 1, 1};
  if constexpr (kOptimizer != MlpOptimizer::kSgd) {
    const auto updates = static_cast<float>(progress.steps - progress.skipped + 1);
    // Computes 1 - βⁿ without the cancellation for β near 1.
    factors.first_correction = -1 / expm1f(updates * logf(rule.momentum));
    factors.second_correction = 1 / sqrtf(-expm1f(updates * logf(rule.beta2)));
  }
  return factors;
}

/// Return the new value of a weight and update its moments. Which of the products are fused with
/// additions is written out: the compiler's choice would depend on the code around it, so that the
/// last bits would differ between the kernels that learn.
template <MlpOptimizer kOptimizer>
float update(const MlpRule& rule, const Factors& factors, float weight, float gradient,
             float& first, float& second) {
  const float rate = factors.learning_rate;
  gradient = __fmul_rn(gradient, factors.unscale);
  if constexpr (kOptimizer == MlpOptimizer::kAdamW) {
    weight = __fmaf_rn(-weight, rate * rule.weight_decay, weight);
  } else {
    gradient = __fmaf_rn(weight, rule.weight_decay, gradient);
  }
  if constexpr (kOptimizer == MlpOptimizer::kSgd) {
    first = __fmaf_rn(rule.momentum, first, gradient);
    return __fsub_rn(weight, __fmul_rn(rate, first));
  } else {
    first = __fmaf_rn(1 - rule.momentum, __fsub_rn(gradient, first), first);
    second = __fmaf_rn(rule.beta2, second, (1 - rule.beta2) * gradient * gradient);
    const float denominator = __fmaf_rn(sqrtf(second), factors.second_correction, rule.epsilon);
    return weight - rate * factors.first_correction * first / denominator;
  }
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

inline uint2 read_words(const float* from) { return *reinterpret_cast<const uint2*>(from); }
template <typename T>
uint2 read_words(const T* from) {
  return {*reinterpret_cast<const std::uint32_t*>(from), 0};
}

/// Widen the result of read_words for an array of that type.
template <typename Stored>
float2 widen_words(uint2 words) {
  if constexpr (std::is_same_v<Stored, float>) {
    return {__uint_as_float(words.x), __uint_as_float(words.y)};
  } else {
    return unpack<Stored>(words.x);
  }
}

/// Return the weights that the optimizer updates: 32-bit ones, of which those in 16 bits are a
/// rounded copy, or those in 16 bits alone.
template <typename T, typename Stored>
Stored* stored_weights(const Learning& learning) {
  if constexpr (std::is_same_v<Stored, T>) {
    return static_cast<T*>(learning.weights);
  } else {
    return learning.master;
  }
}

template <typename T, typename Stored>
Kept read_kept(const Learning& learning, std::size_t offset) {
  Kept kept{0, read_words(stored_weights<T, Stored>(learning) + offset), {}, {}};
  if (learning.first != nullptr) {
    kept.first = read_words(static_cast<const Stored*>(learning.first) + offset);
  }
  if (learning.second != nullptr) {
    kept.second = read_words(static_cast<const Stored*>(learning.second) + offset);
  }
  if constexpr (!std::is_same_v<Stored, T>) {
    kept.rounded = read_words(static_cast<const T*>(learning.weights) + offset).x;
  }
  return kept;
}

/// Return a 32-bit weight, or its rounded copy if something other than a step changed that. PyTorch
/// does not count all such changes: not those through .data, nor those by fused optimizers.
inline float current_weight(float master, float master_rounded, float rounded) {
  return master_rounded == rounded ? master : rounded;
}

/// Update the values loaded from that offset.
template <typename T, typename Stored, MlpOptimizer kOptimizer>
void update_kept(const Learning& learning, const Factors& factors, const Kept& kept,
                 std::size_t offset, float2 gradients) {
  constexpr bool kHasCopy = !std::is_same_v<Stored, T>;
  float2 weight = widen_words<Stored>(kept.weight);
  if constexpr (kHasCopy) {
    const float2 master_rounded = unpack<T>(pack<T>(weight.x, weight.y));
    const float2 rounded = unpack<T>(kept.rounded);
    weight.x = current_weight(weight.x, master_rounded.x, rounded.x);
    weight.y = current_weight(weight.y, master_rounded.y, rounded.y);
  }
  float2 first = widen_words<Stored>(kept.first);
  float2 second = widen_words<Stored>(kept.second);
  weight.x = update<kOptimizer>(learning.rule, factors, weight.x, gradients.x, first.x, second.x);
  weight.y = update<kOptimizer>(learning.rule, factors, weight.y, gradients.y, first.y, second.y);
  write_pair(stored_weights<T, Stored>(learning) + offset, weight);
  if (learning.first != nullptr) {
    write_pair(static_cast<Stored*>(learning.first) + offset, first);
  }
  if (learning.second != nullptr) {
    write_pair(static_cast<Stored*>(learning.second) + offset, second);
  }
  if constexpr (kHasCopy) {
    write_pair(static_cast<T*>(learning.weights) + offset, weight);
  }
}

}  // namespace convtime::mlp
