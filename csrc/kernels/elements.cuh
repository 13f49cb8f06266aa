#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/element_type.h"

// What kernels read, compute in and write, by the type of their tensors' elements.
namespace convtime::elements {

constexpr unsigned kThreads = 128;

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

/// What sums are made in.
template <typename T>
using Wide = decltype(widen(T()));

template <typename T>
__device__ T narrow(Wide<T> value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

/// So many elements, loaded and stored as one where they are at most 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T lane[N];
};

template <typename T>
constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

/// 16 bytes.
template <typename T>
using Vector = Pack<T, kLanes<T>>;

/// What has as many bytes, and is read and written at once.
template <typename P>
using Word = std::conditional_t<
    sizeof(P) == 16, uint4,
    std::conditional_t<
        sizeof(P) == 8, uint2,
        std::conditional_t<sizeof(P) == 4, unsigned,
                           std::conditional_t<sizeof(P) == 2, unsigned short, unsigned char>>>>;

template <typename P>
__device__ const Word<P>* as_words(const P* from) {
  static_assert(sizeof(P) == 16 || sizeof(P) == 8 || sizeof(P) == 4 || sizeof(P) == 2 ||
                sizeof(P) == 1);
  return reinterpret_cast<const Word<P>*>(from);
}

template <typename P>
__device__ P from_word(const Word<P>& word) {
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

/// A read of what no thread writes.
template <typename P>
__device__ P load(const P* from) {
  return from_word<P>(__ldg(as_words(from)));
}

/// A read of what is hardly read again: caches give it up before what they held already, which they
/// may have to write to memory first.
template <typename P>
__device__ P load_streaming(const P* from) {
  return from_word<P>(__ldcs(as_words(from)));
}

/// A write as one word.
template <typename P>
__device__ void store(P* to, const P& value) {
  Word<P> word;
  memcpy(&word, &value, sizeof(P));
  *reinterpret_cast<Word<P>*>(to) = word;
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Calls function(T()) for the type's T.
template <typename Function>
void for_type(ElementType type, const Function& function) {
  switch (type) {
    case ElementType::kHalf:
      return function(__half());
    case ElementType::kBFloat16:
      return function(__nv_bfloat16());
    case ElementType::kFloat:
      return function(float());
    case ElementType::kDouble:
      return function(double());
  }
}

/// Blocks for a loop over so many elements.
inline unsigned loop_blocks(std::int64_t count) {
  return static_cast<unsigned>(
      std::min<std::int64_t>((count + kThreads - 1) / kThreads, std::int64_t{1} << 20));
}

}  // namespace convtime::elements
