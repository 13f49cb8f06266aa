#pragma once

#include <cstdint>

// The 16-bit floating-point types of device code, with what kernels do to them. CUDA's headers for
// them need not be found when kernels are compiled.
namespace convtime {

/// IEEE binary16.
struct Half {
  std::uint16_t bits;

  Half() = default;
  explicit Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
};

/// The upper half of a binary32.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  /// Rounds to nearest even.
  explicit BFloat16(float value) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const unsigned word = __float_as_uint(value);
    const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? 0x7fff : static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
#endif
  }
};

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(Half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
inline float widen(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// --- Two values in one word, the first in its lower half

struct HalfPair {
  std::uint32_t word;
};
struct BFloat16Pair {
  std::uint32_t word;
};

inline HalfPair pair_of(Half first, Half second) {
  return {first.bits | static_cast<std::uint32_t>(second.bits) << 16};
}
inline BFloat16Pair pair_of(BFloat16 first, BFloat16 second) {
  return {first.bits | static_cast<std::uint32_t>(second.bits) << 16};
}
inline Half first_of(HalfPair pair) {
  Half result;
  result.bits = static_cast<std::uint16_t>(pair.word);
  return result;
}
inline Half second_of(HalfPair pair) {
  Half result;
  result.bits = static_cast<std::uint16_t>(pair.word >> 16);
  return result;
}
inline BFloat16 first_of(BFloat16Pair pair) {
  BFloat16 result;
  result.bits = static_cast<std::uint16_t>(pair.word);
  return result;
}
inline BFloat16 second_of(BFloat16Pair pair) {
  BFloat16 result;
  result.bits = static_cast<std::uint16_t>(pair.word >> 16);
  return result;
}

// --- Maxima that keep NaN, as PyTorch's do. GPUs before compute capability 8.0 have no instruction
// for them.

inline double max_nan(double a, double b) { return a > b || a != a ? a : b; }
inline float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a > b || a != a ? a : b;
#endif
}
inline Half max_nan(Half a, Half b) {
#if __CUDA_ARCH__ >= 800
  Half result;
  asm("max.NaN.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
  return result;
#else
  return Half(max_nan(widen(a), widen(b)));
#endif
}
inline BFloat16 max_nan(BFloat16 a, BFloat16 b) {
#if __CUDA_ARCH__ >= 800
  BFloat16 result;
  asm("max.NaN.bf16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
  return result;
#else
  return BFloat16(max_nan(widen(a), widen(b)));
#endif
}
inline HalfPair max_nan(HalfPair a, HalfPair b) {
#if __CUDA_ARCH__ >= 800
  HalfPair result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result.word) : "r"(a.word), "r"(b.word));
  return result;
#else
  return pair_of(max_nan(first_of(a), first_of(b)), max_nan(second_of(a), second_of(b)));
#endif
}
inline BFloat16Pair max_nan(BFloat16Pair a, BFloat16Pair b) {
#if __CUDA_ARCH__ >= 800
  BFloat16Pair result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result.word) : "r"(a.word), "r"(b.word));
  return result;
#else
  return pair_of(max_nan(first_of(a), first_of(b)), max_nan(second_of(a), second_of(b)));
#endif
}

}  // namespace convtime
