#pragma once

#include "kernels/relu_max_pool2d/pool_elements.cuh"
#include "kernels/tutorial/builds.cuh"
#include "kernels/tutorial/sizes.h"

namespace convtime::tutorial {

using elements::is_aligned;
using elements::kLanes;
using elements::Pack;
using pool::clamp;
using pool::max_nan;

// A position outside the input is clamped to the nearest one inside, which is in the same window: a
// repeated element does not change a maximum. The maximum starts at zero, which implements the
// ReLU.

// --- The source of a kernel's geometry ----------------------------------------------------------

/// Geometry from the launch parameters.
struct Parameters {
  static PoolSizes read(const PoolSizes& sizes) { return sizes; }
};

/// The host writes the sizes, and finds them by this name.
extern "C" {
__constant__ PoolSizes known_sizes[kKnownSizes];
}

struct ConstantMemory {
  static PoolSizes read(int place) { return known_sizes[place]; }
};

/// Like Parameters, but the window is a compile-time constant: the compiler unrolls loops and turns
/// divisions into shifts.
template <int K>
struct CompiledWindow {
  static PoolSizes read(PoolSizes sizes) {
    sizes.kernel = K;
    sizes.stride = 2;
    sizes.padding = K - 2;
    return sizes;
  }
};

// --- Memory layout ------------------------------------------------------------------------------

struct Position {
  int image;
  int channel;
  int row;
  int column;
};

/// The dimension along which neighboring threads are adjacent.
enum class Neighbours { kColumns, kChannels };

template <Neighbours kNeighbours>
Position position_of(unsigned thread, const PoolSizes& s) {
  const unsigned channels = s.channels;
  const unsigned columns = s.out_width;
  const unsigned rows = s.out_height;
  const unsigned fast = kNeighbours == Neighbours::kColumns ? columns : channels;
  const unsigned rest = thread / fast;
  Position at{};
  if constexpr (kNeighbours == Neighbours::kColumns) {
    at.column = static_cast<int>(thread % fast);
    at.row = static_cast<int>(rest % rows);
    at.channel = static_cast<int>(rest / rows % channels);
    at.image = static_cast<int>(rest / rows / channels);
  } else {
    at.channel = static_cast<int>(thread % fast);
    at.column = static_cast<int>(rest % columns);
    at.row = static_cast<int>(rest / columns % rows);
    at.image = static_cast<int>(rest / columns / rows);
  }
  return at;
}

/// Return the offset in a tensor of that height and width.
inline unsigned offset_of(const Position& at, const PoolSizes& s, int height, int width) {
  return s.channels_last
             ? ((at.image * height + at.row) * width + at.column) * s.channels + at.channel
             : ((at.image * s.channels + at.channel) * height + at.row) * width + at.column;
}

inline unsigned input_offset(const Position& at, const PoolSizes& s) {
  return offset_of(at, s, s.height, s.width);
}

inline unsigned output_offset(const Position& at, const PoolSizes& s) {
  return offset_of(at, s, s.out_height, s.out_width);
}

// --- The steps ----------------------------------------------------------------------------------

template <typename T, Neighbours kNeighbours, typename Geometry>
struct OutputPerThread {
  template <typename Source>
  void operator()(const T* input, T* output, const Source& source) const {
    const PoolSizes s = Geometry::read(source);
    const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
    if (thread >= static_cast<unsigned>(s.batch * s.channels * s.out_height * s.out_width)) {
      return;
    }
    const Position at = position_of<kNeighbours>(thread, s);
    Position from = at;
    T best = T(0);
    for (int i = 0; i < s.kernel; ++i) {
      from.row = clamp(at.row * s.stride - s.padding + i, s.height - 1);
      for (int j = 0; j < s.kernel; ++j) {
        from.column = clamp(at.column * s.stride - s.padding + j, s.width - 1);
        best = max_nan(best, elements::load(input + input_offset(from, s)));
      }
    }
    elements::store(output + output_offset(at, s), best);
  }
};

/// A block has a tile of outputs, with one output per thread.
template <typename T, bool kChannelsLast>
struct SharedTile {
  void operator()(const T* input, T* output, const PoolSizes& s) const {
    using Tile = Tile<kChannelsLast>;
    static_assert(Tile::kChannels * Tile::kRows * Tile::kColumns == kThreads);
    extern __shared__ __align__(16) unsigned char shared[];
    T* const tile = reinterpret_cast<T*>(shared);
    const int thread = static_cast<int>(threadIdx.x);

    const unsigned tiles_of_channels = (s.channels + Tile::kChannels - 1) / Tile::kChannels;
    const unsigned tiles_of_columns = (s.out_width + Tile::kColumns - 1) / Tile::kColumns;
    const unsigned tiles_of_rows = (s.out_height + Tile::kRows - 1) / Tile::kRows;
    const unsigned block = blockIdx.x;
    Position first{};  // first output of the tile
    first.channel = static_cast<int>(block % tiles_of_channels) * Tile::kChannels;
    first.column = static_cast<int>(block / tiles_of_channels % tiles_of_columns) * Tile::kColumns;
    first.row = static_cast<int>(block / tiles_of_channels / tiles_of_columns % tiles_of_rows) *
                Tile::kRows;
    first.image = static_cast<int>(block / tiles_of_channels / tiles_of_columns / tiles_of_rows);

    const int rows = (Tile::kRows - 1) * s.stride + s.kernel;
    const int columns = (Tile::kColumns - 1) * s.stride + s.kernel;
    for (int i = thread; i < Tile::kChannels * rows * columns; i += kThreads) {
      Position from = first;
      from.channel = min(first.channel + i % Tile::kChannels, s.channels - 1);
      from.column =
          clamp(first.column * s.stride - s.padding + i / Tile::kChannels % columns, s.width - 1);
      from.row =
          clamp(first.row * s.stride - s.padding + i / Tile::kChannels / columns, s.height - 1);
      tile[i] = elements::load(input + input_offset(from, s));
    }
    __syncthreads();

    const int channel = thread % Tile::kChannels;
    const int column = thread / Tile::kChannels % Tile::kColumns;
    const int row = thread / Tile::kChannels / Tile::kColumns;
    const Position at{first.image, first.channel + channel, first.row + row, first.column + column};
    if (at.channel >= s.channels || at.row >= s.out_height || at.column >= s.out_width) {
      return;
    }
    T best = T(0);
    for (int i = 0; i < s.kernel; ++i) {
      for (int j = 0; j < s.kernel; ++j) {
        const int pixel = (row * s.stride + i) * columns + column * s.stride + j;
        best = max_nan(best, tile[pixel * Tile::kChannels + channel]);
      }
    }
    elements::store(output + output_offset(at, s), best);
  }
};

/// For (N, C, H, W): a thread has 16 bytes of each row, and half as many outputs. It reads rows
/// whose size is not a multiple of 16 bytes element by element.
template <typename T, int K>
struct ColumnsPerThread {
  static constexpr int kColumns = kLanes<T>;
  static constexpr int kOutputs = kColumns / 2;

  void operator()(const T* input, T* output, const PoolSizes& sizes) const {
    const PoolSizes s = CompiledWindow<K>::read(sizes);
    if (s.width % kColumns == 0 && is_aligned(input) && is_aligned(output)) {
      pool<true>(input, output, s);
    } else {
      pool<false>(input, output, s);
    }
  }

  template <bool kWhole>
  static void pool(const T* input, T* output, const PoolSizes& s) {
    const unsigned groups = (s.out_width + kOutputs - 1) / kOutputs;
    const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
    if (thread >= s.batch * s.channels * s.out_height * groups) {
      return;
    }
    const int group = static_cast<int>(thread % groups);
    const int row = static_cast<int>(thread / groups % s.out_height);
    const unsigned plane = thread / groups / s.out_height;
    const int column = group * kColumns;

    Pack<T, kColumns> rows[K];
    T left[K];  // the column to the left, or the first column again
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int from = clamp(row * s.stride - s.padding + i, s.height - 1);
      const T* const source = input + (plane * s.height + from) * s.width + column;
      rows[i] = load_up_to<kColumns, kWhole>(source, s.width - column);
      left[i] = K == 3 ? elements::load(group > 0 ? source - 1 : source) : T(0);
    }
    Pack<T, kColumns> maxima{};
    T before = T(0);
#pragma unroll
    for (int i = 0; i < K; ++i) {
      maxima = max_nan(maxima, rows[i]);
      before = max_nan(before, left[i]);
    }
    Pack<T, kOutputs> best;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      best.lane[j] = max_nan(maxima.lane[2 * j], maxima.lane[2 * j + 1]);
      if constexpr (K == 3) {
        best.lane[j] = max_nan(best.lane[j], j == 0 ? before : maxima.lane[max(2 * j - 1, 0)]);
      }
    }
    T* const target = output + (plane * s.out_height + row) * s.out_width + group * kOutputs;
    store_up_to<kOutputs, kWhole>(target, best, s.out_width - group * kOutputs);
  }
};

/// For (N, H, W, C): a thread has 16 bytes of an output's channels. It reads channels whose size is
/// not a multiple of 16 bytes element by element.
template <typename T, int K>
struct ChannelsPerThread {
  static constexpr int kChannels = kLanes<T>;

  void operator()(const T* input, T* output, const PoolSizes& sizes) const {
    const PoolSizes s = CompiledWindow<K>::read(sizes);
    if (s.channels % kChannels == 0 && is_aligned(input) && is_aligned(output)) {
      pool<true>(input, output, s);
    } else {
      pool<false>(input, output, s);
    }
  }

  template <bool kWhole>
  static void pool(const T* input, T* output, const PoolSizes& s) {
    const unsigned groups = (s.channels + kChannels - 1) / kChannels;
    const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
    if (thread >= s.batch * s.out_height * s.out_width * groups) {
      return;
    }
    Position at{};
    at.channel = static_cast<int>(thread % groups) * kChannels;
    at.column = static_cast<int>(thread / groups % s.out_width);
    at.row = static_cast<int>(thread / groups / s.out_width % s.out_height);
    at.image = static_cast<int>(thread / groups / s.out_width / s.out_height);
    const int channels = s.channels - at.channel;
    Pack<T, kChannels> pixels[K][K];
    Position from = at;
#pragma unroll
    for (int i = 0; i < K; ++i) {
      from.row = clamp(at.row * s.stride - s.padding + i, s.height - 1);
#pragma unroll
      for (int j = 0; j < K; ++j) {
        from.column = clamp(at.column * s.stride - s.padding + j, s.width - 1);
        pixels[i][j] = load_up_to<kChannels, kWhole>(input + input_offset(from, s), channels);
      }
    }
    Pack<T, kChannels> best{};
#pragma unroll
    for (int i = 0; i < K; ++i) {
#pragma unroll
      for (int j = 0; j < K; ++j) {
        best = max_nan(best, pixels[i][j]);
      }
    }
    store_up_to<kChannels, kWhole>(output + output_offset(at, s), best, channels);
  }
};

}  // namespace convtime::tutorial
