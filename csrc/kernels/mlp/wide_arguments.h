#pragma once

#include <cstdint>

#include "kernels/mlp/step.h"

// What the kernels of wide_kernels.cuh and the code that launches them share. As in step.h, the
// host passes pointers to void in place of pointers to T and Stored, the type of the weights that
// the optimizer updates.

namespace convtime::mlp {

constexpr int kBiasThreads = 1024;  // of bias_kernel; the others have kThreads
constexpr int kBiasColumns = 64;    // per block

/// The rows of an array that a step takes: the batch given by the counter, or the first batch if it
/// is null.
struct BatchChoice {
  const std::int64_t* steps = nullptr;
  std::int64_t batches = 1;
};

/// Temporary state of the loss. After a step, everything except the partial sums is back at its
/// initial value.
struct WideLoss {
  static constexpr int kMostBlocks = 1024;

  float partial[kMostBlocks];  // sums of the blocks
  unsigned arrived;            // number of blocks
  unsigned learners_arrived;   // number of blocks of launch_learn
  unsigned overflowed;         // whether any weight gradient is not finite
};

template <typename T>
struct CopyArguments {
  const T* from;
  std::int64_t from_ld;
  T* to;
  std::int64_t to_ld;
  int columns;
  int padded;
  std::int64_t rows;
  BatchChoice choice;
};

template <typename T>
struct ActivationArguments {
  T* values;           // or gradients
  const T* activated;  // for gradients
  std::int64_t packs;
};

template <typename T>
struct LossArguments {
  T* outputs;
  std::int64_t ld;
  int columns;
  int padded;
  const void* targets;
  std::int64_t rows;
  BatchChoice choice;
  const float* scale;  // null: 1
  float factor;        // factor of the sum over the batch
  float* losses;
  std::int64_t losses_kept;
  WideLoss* loss;
};

template <typename T, typename Stored>
struct BiasArguments {
  const T* deltas;
  std::int64_t rows;
  int width;
  int layers;
  int last_columns;
  Stored* gradients;
};

template <typename Stored>
struct LearnArguments {
  Learning learning;
  const Stored* gradients;
  std::int64_t packs;
  WideLoss* loss;
};

static_assert(sizeof(WideLoss) == 4108 && sizeof(CopyArguments<void>) == 64);
static_assert(sizeof(ActivationArguments<void>) == 24 && sizeof(LossArguments<void>) == 96);
static_assert(sizeof(BiasArguments<void, void>) == 40 && sizeof(LearnArguments<void>) == 120);

}  // namespace convtime::mlp
