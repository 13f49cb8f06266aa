#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/element_type.h"

// The types in which kernels read, compute and write, given the element type of their tensors.
namespace convtime::elements {

constexpr unsigned kThreads = 128;

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

/// The type in which sums are accumulated.
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

/// N elements, loaded and stored in one instruction if they have at most 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T lane[N];
};

template <typename T>
constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

/// A pack of 16 bytes.
template <typename T>
using Vector = Pack<T, kLanes<T>>;

/// A word of the pack's size, read and written in one instruction.
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

/// Read memory that no thread writes.
template <typename P>
__device__ P load(const P* from) {
  return from_word<P>(__ldg(as_words(from)));
}

/// Read memory that is unlikely to be read again: caches evict it before older lines, which may
/// first have to be written back to memory.
template <typename P>
__device__ P load_streaming(const P* from) {
  return from_word<P>(__ldcs(as_words(from)));
}

/// Write a pack as one word.
template <typename P>
__device__ void store(P* to, const P& value) {
  Word<P> word;
  memcpy(&word, &value, sizeof(P));
  *reinterpret_cast<Word<P>*>(to) = word;
}

__host__ __device__ inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Call function(T()) for the T of the element type.
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

/// Return the number of blocks for a loop over that many elements.
inline unsigned loop_blocks(std::int64_t count) {
  return static_cast<unsigned>(
      std::min<std::int64_t>((count + kThreads - 1) / kThreads, std::int64_t{1} << 20));
}

}  // namespace convtime::elements
