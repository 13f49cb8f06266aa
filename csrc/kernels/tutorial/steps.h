#pragma once

#include <array>
#include <cstdint>

#include "kernels/tutorial/sizes.h"

namespace convtime::tutorial {

// The choices of the user, with their public names and their properties.

/// Steps of ReLU and max-pooling; each adds one idea to an earlier step.
enum class PoolStep : std::int8_t {
  kNaive,           ///< one output per thread; neighboring threads are far apart in memory
  kCoalesced,       ///< as kNaive; neighboring threads are adjacent in memory
  kConstantMemory,  ///< as kCoalesced; the geometry is read from constant memory
  kUnrolled,        ///< as kCoalesced; the window is a compile-time constant
  kSharedMemory,    ///< a block loads the inputs of its outputs into shared memory once
  kVectorised,      ///< as kUnrolled; a thread loads 16 bytes at a time
};
inline constexpr std::array kPoolSteps = {PoolStep::kNaive,          PoolStep::kCoalesced,
                                          PoolStep::kConstantMemory, PoolStep::kUnrolled,
                                          PoolStep::kSharedMemory,   PoolStep::kVectorised};

constexpr const char* to_string(PoolStep step) {
  switch (step) {
    case PoolStep::kNaive:
      return "naive";
    case PoolStep::kCoalesced:
      return "coalesced";
    case PoolStep::kConstantMemory:
      return "constant_memory";
    case PoolStep::kUnrolled:
      return "unrolled";
    case PoolStep::kSharedMemory:
      return "shared_memory";
    case PoolStep::kVectorised:
      return "vectorised";
  }
  return "";
}

/// Steps of an activation and its gradient.
enum class ActivationStep : std::int8_t {
  kNaive,       ///< one element per thread
  kVectorised,  ///< 16 bytes per thread
};
inline constexpr std::array kActivationSteps = {ActivationStep::kNaive,
                                                ActivationStep::kVectorised};

constexpr const char* to_string(ActivationStep step) {
  return step == ActivationStep::kNaive ? "naive" : "vectorised";
}

/// Compiler settings for the same source.
enum class Build : std::int8_t {
  kPlain,         ///< none
  kLaunchBounds,  ///< the number of threads per block
  kMinBlocks,     ///< as kLaunchBounds, and enough blocks to fill a multiprocessor with threads
  kMaxRegisters,  ///< an upper limit on registers per thread
  kFastMath,      ///< --use_fast_math
};
inline constexpr std::array kBuilds = {Build::kPlain, Build::kLaunchBounds, Build::kMinBlocks,
                                       Build::kMaxRegisters, Build::kFastMath};
/// Activations need few registers; builds that limit them are left out.
inline constexpr std::array kActivationBuilds = {Build::kPlain, Build::kFastMath};

constexpr const char* to_string(Build build) {
  switch (build) {
    case Build::kPlain:
      return "plain";
    case Build::kLaunchBounds:
      return "launch_bounds";
    case Build::kMinBlocks:
      return "min_blocks";
    case Build::kMaxRegisters:
      return "max_registers";
    case Build::kFastMath:
      return "fast_math";
  }
  return "";
}

/// Chosen so that int can hold each index, including indices one tile beyond the edge.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 30;

/// kUnrolled and kVectorised support two windows: 3 × 3 with a padding of 1, and 2 × 2 without
/// padding, both with a stride of 2.
constexpr bool is_compiled(std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return (kernel == 2 || kernel == 3) && stride == 2 && padding == kernel - 2;
}

inline constexpr std::int64_t kMaxSharedBytes = 48 * 1024;

}  // namespace convtime::tutorial
