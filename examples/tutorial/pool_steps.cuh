#pragma once

#include "memory.cuh"

// A position outside the input is clamped to the nearest one inside, which is in the same window: a
// repeated element does not change a maximum. The maximum starts at zero, which implements the
// ReLU.

/// A square window over dense tensors: (N, C, H, W) in memory, or (N, H, W, C) if channels_last.
struct PoolSizes {
  int batch;
  int channels;
  int height;
  int width;
  int out_height;
  int out_width;
  int kernel;
  int stride;
  int padding;
  bool channels_last;
};

inline int clamp(int value, int last) { return max(0, min(value, last)); }

// --- Maxima that keep NaN, as PyTorch's do; GPUs before compute capability 8.0 have no instruction

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

template <typename T, int N>
Pack<T, N> max_nan(const Pack<T, N>& a, const Pack<T, N>& b) {
  Pack<T, N> result;
#pragma unroll
  for (int lane = 0; lane < N; ++lane) {
    result.lane[lane] = max_nan(a.lane[lane], b.lane[lane]);
  }
  return result;
}

#if __CUDA_ARCH__ >= 800
template <int N>
Pack<Half, N> max_nan(const Pack<Half, N>& a, const Pack<Half, N>& b) {
  Pack<Half, N> result;
  const auto* const from_a = reinterpret_cast<const unsigned*>(&a);
  const auto* const from_b = reinterpret_cast<const unsigned*>(&b);
#pragma unroll
  for (int pair = 0; pair < N / 2; ++pair) {
    asm("max.NaN.f16x2 %0, %1, %2;"
        : "=r"(reinterpret_cast<unsigned*>(&result)[pair])
        : "r"(from_a[pair]), "r"(from_b[pair]));
  }
  return result;
}
#endif

// --- The source of a kernel's geometry ----------------------------------------------------------

/// Geometry from the launch parameters.
struct Parameters {
  static PoolSizes read(const PoolSizes& sizes) { return sizes; }
};

#ifdef KNOWN_SIZES
/// Not a constant to the compiler, because the host may write it before a launch.
__constant__ PoolSizes known_sizes[] = {KNOWN_SIZES};

/// Geometry from constant memory, at an index that is a launch parameter.
struct ConstantMemory {
  static PoolSizes read(int place) { return known_sizes[place]; }
};
#endif

/// Like Parameters, but the window is a compile-time constant: the compiler unrolls loops and turns
/// divisions into shifts.
struct CompiledWindow {
  static constexpr int kKernel = 3;

  static PoolSizes read(PoolSizes sizes) {
    sizes.kernel = kKernel;
    sizes.stride = 2;
    sizes.padding = 1;
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
        best = max_nan(best, load(input + input_offset(from, s)));
      }
    }
    store(output + output_offset(at, s), best);
  }
};

/// A block has a tile of outputs, with one output per thread; as in tutorial.py.
template <typename T, bool kChannelsLast>
struct SharedTile {
  static constexpr int kChannels = kChannelsLast ? 32 : 1;
  static constexpr int kRows = kChannelsLast ? 2 : 4;
  static constexpr int kColumns = kChannelsLast ? 2 : 32;
  static_assert(kChannels * kRows * kColumns == kThreads);

  void operator()(const T* input, T* output, const PoolSizes& s) const {
    extern __shared__ __align__(16) unsigned char shared[];
    T* const tile = reinterpret_cast<T*>(shared);
    const int thread = static_cast<int>(threadIdx.x);

    const unsigned tiles_of_channels = (s.channels + kChannels - 1) / kChannels;
    const unsigned tiles_of_columns = (s.out_width + kColumns - 1) / kColumns;
    const unsigned tiles_of_rows = (s.out_height + kRows - 1) / kRows;
    const unsigned block = blockIdx.x;
    Position first{};  // first output of the tile
    first.channel = static_cast<int>(block % tiles_of_channels) * kChannels;
    first.column = static_cast<int>(block / tiles_of_channels % tiles_of_columns) * kColumns;
    first.row =
        static_cast<int>(block / tiles_of_channels / tiles_of_columns % tiles_of_rows) * kRows;
    first.image = static_cast<int>(block / tiles_of_channels / tiles_of_columns / tiles_of_rows);

    const int rows = (kRows - 1) * s.stride + s.kernel;
    const int columns = (kColumns - 1) * s.stride + s.kernel;
    for (int i = thread; i < kChannels * rows * columns; i += kThreads) {
      Position from = first;
      from.channel = min(first.channel + i % kChannels, s.channels - 1);
      from.column =
          clamp(first.column * s.stride - s.padding + i / kChannels % columns, s.width - 1);
      from.row = clamp(first.row * s.stride - s.padding + i / kChannels / columns, s.height - 1);
      tile[i] = load(input + input_offset(from, s));
    }
    __syncthreads();

    const int channel = thread % kChannels;
    const int column = thread / kChannels % kColumns;
    const int row = thread / kChannels / kColumns;
    const Position at{first.image, first.channel + channel, first.row + row, first.column + column};
    if (at.channel >= s.channels || at.row >= s.out_height || at.column >= s.out_width) {
      return;
    }
    T best = T(0);
    for (int i = 0; i < s.kernel; ++i) {
      for (int j = 0; j < s.kernel; ++j) {
        const int pixel = (row * s.stride + i) * columns + column * s.stride + j;
        best = max_nan(best, tile[pixel * kChannels + channel]);
      }
    }
    store(output + output_offset(at, s), best);
  }
};

/// For (N, C, H, W): a thread has 16 bytes of each row, and half as many outputs. It reads rows
/// whose size is not a multiple of 16 bytes element by element.
template <typename T>
struct ColumnsPerThread {
  static constexpr int kColumns = kLanes<T>;
  static constexpr int kOutputs = kColumns / 2;
  static constexpr int K = CompiledWindow::kKernel;

  void operator()(const T* input, T* output, const PoolSizes& sizes) const {
    const PoolSizes s = CompiledWindow::read(sizes);
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
      left[i] = load(group > 0 ? source - 1 : source);
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
      best.lane[j] = max_nan(best.lane[j], j == 0 ? before : maxima.lane[max(2 * j - 1, 0)]);
    }
    T* const target = output + (plane * s.out_height + row) * s.out_width + group * kOutputs;
    store_up_to<kOutputs, kWhole>(target, best, s.out_width - group * kOutputs);
  }
};

/// For (N, H, W, C): a thread has 16 bytes of an output's channels. It reads channels whose size is
/// not a multiple of 16 bytes element by element.
template <typename T>
struct ChannelsPerThread {
  static constexpr int kChannels = kLanes<T>;
  static constexpr int K = CompiledWindow::kKernel;

  void operator()(const T* input, T* output, const PoolSizes& sizes) const {
    const PoolSizes s = CompiledWindow::read(sizes);
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
