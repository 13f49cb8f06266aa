#pragma once

// What all steps use: a 16-bit type, and elements that are loaded and stored together.

constexpr int kThreads = 128;  // per block; as in tutorial.py

/// IEEE binary16.
struct Half {
  unsigned short bits;

  Half() = default;
  explicit Half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
};

inline float widen(float value) { return value; }
inline float widen(Half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

/// N elements that one instruction moves, of 16 bytes at most.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T lane[N];
};

/// The elements in 16 bytes.
template <typename T>
constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

template <int kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <typename P>
using Word = typename WordOf<sizeof(P)>::Type;

template <typename P>
P load(const P* from) {
  const Word<P> word = __ldg(reinterpret_cast<const Word<P>*>(from));
  P result;
  memcpy(&result, &word, sizeof(P));
  return result;
}

template <typename P>
void store(P* to, const P& value) {
  Word<P> word;
  memcpy(&word, &value, sizeof(P));
  *reinterpret_cast<Word<P>*>(to) = word;
}

/// Load N elements. The first `count`, at least one, come from memory; the last is repeated for the
/// rest. If kWhole, all N are valid, and the address is aligned for one vector load.
template <int N, bool kWhole, typename T>
Pack<T, N> load_up_to(const T* from, int count) {
  if constexpr (kWhole) {
    return load(reinterpret_cast<const Pack<T, N>*>(from));
  } else {
    Pack<T, N> result;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      result.lane[lane] = load(from + min(lane, count - 1));
    }
    return result;
  }
}

/// Store the first `count` elements, or all if kWhole, as in load_up_to.
template <int N, bool kWhole, typename T>
void store_up_to(T* to, const Pack<T, N>& value, int count) {
  if constexpr (kWhole) {
    store(reinterpret_cast<Pack<T, N>*>(to), value);
  } else {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      if (lane < count) {
        store(to + lane, value.lane[lane]);
      }
    }
  }
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}
