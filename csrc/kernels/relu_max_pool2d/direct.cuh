#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/relu_max_pool2d/direct.h"
#include "kernels/relu_max_pool2d/windows.cuh"

// A thread writes a pack of N adjacent channels, or one element if channels are not last. An image
// counts as one plane if channels are last. Sizes count packs.
namespace convtime::pool {

/// How the packs of planes of one tensor are divided among threads.
struct Packs {
  int count;
  Division channels;  // of a pixel
  Division columns;
  Division rows;
};

/// A thread's pack.
struct PackPosition {
  int plane;
  int row;
  int column;
  int channel;
};

__device__ inline PackPosition position_of(const Packs& packs, int index) {
  int channel = index;
  int column = packs.channels.split(channel);
  int row = packs.columns.split(column);
  const int plane = packs.rows.split(row);
  return {plane, row, column, channel};
}

/// Call launch(Packs, first plane) for the planes of a tensor of height × width pixels, as many at
/// a time as 32-bit indices allow. Threads have `strips` rows of a plane.
template <typename Launch>
void for_packs(std::int64_t planes, std::int64_t channels, std::int64_t height, std::int64_t width,
               std::int64_t strips, const Launch& launch) {
  const std::int64_t most =
      std::max<std::int64_t>(1, (kMax32 - kThreads) / (height * width * channels));
  for (std::int64_t first = 0; first < planes; first += most) {
    const std::int64_t count = std::min(most, planes - first) * strips * width * channels;
    launch(Packs{static_cast<int>(count), Division(channels), Division(width), Division(strips)},
           first);
  }
}

inline unsigned blocks_for(const Packs& packs) {
  return static_cast<unsigned>(ceil_div(packs.count, kThreads));
}

/// Call launch(std::integral_constant<int, N>()) for the largest N, up to 16 bytes, of channels
/// that tensors allow: elements of T and winners are aligned to packs of N. `elements` are written,
/// by at least `least` threads if N > 1: fewer leave multiprocessors idle.
template <typename T, int N = kLanes<T>, typename Launch>
void with_pack_size(const PoolGeometry& g, std::int64_t elements, std::int64_t least, const T* from,
                    const T* to, const void* winners, const Launch& launch) {
  if constexpr (N > 1) {
    const auto is_aligned = [](const void* pointer, std::size_t bytes) {
      return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
    };
    if (!g.channels_last || g.channels % N != 0 || elements / N < least ||
        !is_aligned(from, N * sizeof(T)) || !is_aligned(to, N * sizeof(T)) ||
        !is_aligned(winners, N)) {
      return with_pack_size<T, N / 2>(g, elements, least, from, to, winners, launch);
    }
  }
  launch(std::integral_constant<int, N>());
}

/// Call launch(std::integral_constant<int, C>()) for C columns, or for C = 0 if they are more than
/// kMost.
template <int kMost, typename Launch>
void with_columns(std::int64_t columns, const Launch& launch) {
  if constexpr (kMost > 0) {
    if (columns != kMost) {
      return with_columns<kMost - 1>(columns, launch);
    }
  }
  launch(std::integral_constant<int, kMost>());
}

}  // namespace convtime::pool
