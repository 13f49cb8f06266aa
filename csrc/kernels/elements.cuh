#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/half.cuh"

// The types in which kernels read, compute and write, given the element type of their tensors.
namespace convtime::elements {

constexpr unsigned kThreads = 128;  // as in elements.h

/// The type in which sums are accumulated.
template <typename T>
using Wide = decltype(widen(T()));

template <typename T>
T narrow(Wide<T> value) {
  return T(value);
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
const Word<P>* as_words(const P* from) {
  static_assert(sizeof(P) == 16 || sizeof(P) == 8 || sizeof(P) == 4 || sizeof(P) == 2 ||
                sizeof(P) == 1);
  return reinterpret_cast<const Word<P>*>(from);
}

template <typename P>
P from_word(const Word<P>& word) {
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

/// Read memory that no thread writes.
template <typename P>
P load(const P* from) {
  return from_word<P>(__ldg(as_words(from)));
}

/// Read memory that is unlikely to be read again: caches evict it before older lines, which may
/// first have to be written back to memory.
template <typename P>
P load_streaming(const P* from) {
  return from_word<P>(__ldcs(as_words(from)));
}

/// Write a pack to device memory as one word. The compiler takes assignments of large words apart,
/// and where addresses are sums with constants it does not always put them together again.
template <typename P>
void store(P* to, const P& value) {
  Word<P> word;
  memcpy(&word, &value, sizeof(P));
  if constexpr (sizeof(P) == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
  } else if constexpr (sizeof(P) == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word.x), "r"(word.y) : "memory");
  } else {
    *reinterpret_cast<Word<P>*>(to) = word;
  }
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace convtime::elements
