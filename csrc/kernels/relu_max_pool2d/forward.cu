#include <cmath>

#include "core/cuda_check.h"
#include "kernels/relu_max_pool2d/pool_elements.cuh"

namespace convtime {
namespace {

using namespace pool;

// The vectorized kernels support square windows: K = 3 with a padding of 1, and K = 2 without
// padding, both with a stride of 2. A position outside the input is clamped to the nearest one
// inside, which is in the same window: a repeated element does not change a maximum.

// Work per thread: the fastest tile in timings on an H200, or one within 1 % of the fastest.

/// Rows of outputs.
template <int K, bool kWinners>
constexpr int kPlaneRows = K == 3 && kWinners ? 2 : 1;
/// Rows and columns of outputs if channels are last.
constexpr int kPixelRows = 1;
template <int K, bool kWinners>
constexpr int kPixelColumns = K == 2 ? 1 : (kWinners ? 2 : 4);
/// Number of vertically adjacent threads if channels are last; rows that two threads read then hit
/// in L1.
template <int K, bool kWinners>
constexpr unsigned kPixelBand = K == 3 && kWinners ? 4 : 8;

/// Return the position of `best` in a window at (top, left) over value(row, column).
template <int K, typename T, typename Value>
__device__ std::uint8_t find_winner(T best, int top, int height, int left, int width,
                                    const Value& value) {
  const auto number = widen(best);
  const bool is_nan = number != number;
  int position = 0;
  if (is_nan) {  // PyTorch takes the last NaN, but the first of equal values
    for (int i = 0; i < K * K; ++i) {
      const auto element = widen(value(i / K, i % K));
      position = element != element ? i : position;
    }
  } else {
#pragma unroll
    for (int i = K * K - 1; i >= 0; --i) {
      position = value(i / K, i % K) == best ? i : position;
    }
  }
  const int row = clamp(top + position / K, height - 1) - top;
  const int column = clamp(left + position % K, width - 1) - left;
  const int winner = row * K + column;
  return static_cast<std::uint8_t>(is_nan || number > 0 ? winner : winner | kDead<std::uint8_t>);
}

/// For (N, C, H, W): a thread loads N elements of each row, and has half as many outputs in each of
/// its output rows. For K = 3, the column to the left comes from the neighboring lane.
template <typename T, int N, int K, bool kWinners>
__global__ void __launch_bounds__(kThreads)
    planes_kernel(const T* input, T* output, std::uint8_t* winners, unsigned groups,
                  unsigned row_groups, unsigned threads, int height, int out_height) {
  constexpr int kPadding = K - 2;
  constexpr int kOutputs = N / 2;
  using Vector = Pack<T, N>;
  constexpr int kOutputRows = kPlaneRows<K, kWinners>;
  constexpr int kRows = 2 * kOutputRows + kPadding;
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  const unsigned task = min(thread, threads - 1);  // all lanes take part in the shuffles
  const unsigned group = task % groups;
  const unsigned row_group = task / groups % row_groups;
  const std::size_t plane = task / groups / row_groups;
  const int width = static_cast<int>(groups) * N;
  const int first_output = static_cast<int>(row_group) * kOutputRows;
  const int top = 2 * first_output - kPadding;
  const T* const source = input + plane * height * width + group * N;

  Vector rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = load_streaming(reinterpret_cast<const Vector*>(
        source + static_cast<std::size_t>(clamp(top + i, height - 1)) * width));
  }
  T left[kRows];
  const bool has_no_neighbour = threadIdx.x % 32 == 0 && group > 0;
  if constexpr (kPadding == 1) {
    if (has_no_neighbour) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        left[i] = load(source + static_cast<std::size_t>(clamp(top + i, height - 1)) * width - 1);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = relu(rows[i]);
    if constexpr (kPadding == 1) {
      const T neighbours = __shfl_up_sync(0xffffffff, rows[i].lane[N - 1], 1);
      left[i] = has_no_neighbour ? max_nan(left[i], T(0))
                : group == 0     ? rows[i].lane[0]
                                 : neighbours;
    }
  }

  if (thread >= threads) {
    return;
  }
#pragma unroll
  for (int row = 0; row < kOutputRows; ++row) {
    const int oh = first_output + row;
    Vector columns = rows[2 * row];
    T before = left[2 * row];
#pragma unroll
    for (int i = 1; i < K; ++i) {
      columns = max_nan(columns, rows[2 * row + i]);
      if constexpr (kPadding == 1) {
        before = max_nan(before, left[2 * row + i]);
      }
    }
    Pack<T, kOutputs> best;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      best.lane[j] = max_nan(columns.lane[2 * j], columns.lane[2 * j + 1]);
      if constexpr (kPadding == 1) {
        best.lane[j] = max_nan(best.lane[j], j == 0 ? before : columns.lane[2 * j - 1]);
      }
    }
    if (oh >= out_height) {
      break;
    }
    const std::size_t offset = (plane * out_height + oh) * (width / 2) + group * kOutputs;
    store(reinterpret_cast<Pack<T, kOutputs>*>(output + offset), best);
    if constexpr (kWinners) {
      Pack<std::uint8_t, kOutputs> winner;
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        const int first_column = static_cast<int>(group) * N + 2 * j - kPadding;
        winner.lane[j] = find_winner<K>(
            best.lane[j], 2 * oh - kPadding, height, first_column, width, [&](int r, int c) {
              const int column = 2 * j + c - kPadding;
              return column < 0 ? left[2 * row + r] : rows[2 * row + r].lane[max(column, 0)];
            });
      }
      store(reinterpret_cast<Pack<std::uint8_t, kOutputs>*>(winners + offset), winner);
    }
  }
}

/// For (N, H, W, C): a thread has 16 bytes of channels in a tile of outputs.
template <typename T, int K, bool kWinners>
__global__ void __launch_bounds__(kThreads)
    pixels_kernel(const T* input, T* output, std::uint8_t* winners, unsigned vectors,
                  unsigned column_groups, unsigned bands, unsigned threads, int height, int width,
                  int out_height, int out_width) {
  constexpr int kPadding = K - 2;
  constexpr int kOutputRows = kPixelRows;
  constexpr int kOutputColumns = kPixelColumns<K, kWinners>;
  constexpr unsigned kBand = kPixelBand<K, kWinners>;
  constexpr int kRows = 2 * kOutputRows + kPadding;
  constexpr int kColumns = 2 * kOutputColumns + kPadding;
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= threads) {
    return;
  }
  const unsigned vector = thread % vectors;
  const unsigned tile = thread / vectors;
  const unsigned column_group = tile / kBand % column_groups;
  const unsigned band = tile / kBand / column_groups % bands;
  const std::size_t image = tile / kBand / column_groups / bands;
  const int first_row = static_cast<int>(band * kBand + tile % kBand) * kOutputRows;
  const int first_column = static_cast<int>(column_group) * kOutputColumns;
  const int top = 2 * first_row - kPadding;
  const int left = 2 * first_column - kPadding;

  const Vector<T>* sources[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::size_t row = image * height + clamp(top + i, height - 1);
    sources[i] = reinterpret_cast<const Vector<T>*>(input) + row * width * vectors + vector;
  }
  Vector<T> pixels[kColumns][kRows];
  Vector<T> maxima[kColumns][kOutputRows];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const std::size_t column = clamp(left + j, width - 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Vector<T>* const source = sources[i] + column * vectors;
      // Windows of K = 3 overlap, and other threads hit in L1: streaming loads were slower.
      pixels[j][i] = K == 2 ? load_streaming(source) : load(source);
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pixels[j][i] = relu(pixels[j][i]);
    }
#pragma unroll
    for (int row = 0; row < kOutputRows; ++row) {
      maxima[j][row] = max_nan(pixels[j][2 * row], pixels[j][2 * row + 1]);
      if constexpr (K == 3) {
        maxima[j][row] = max_nan(maxima[j][row], pixels[j][2 * row + 2]);
      }
    }
    if (j < K - 1 || (j - K + 1) % 2 != 0) {
      continue;
    }
    const int column = (j - K + 1) / 2;
    const int ow = first_column + column;
#pragma unroll
    for (int row = 0; row < kOutputRows; ++row) {
      const int oh = first_row + row;
      Vector<T> best = max_nan(maxima[j - 1][row], maxima[j][row]);
      if constexpr (K == 3) {
        best = max_nan(best, maxima[j - 2][row]);
      }
      if (oh >= out_height || ow >= out_width) {
        continue;
      }
      const std::size_t offset = ((image * out_height + oh) * out_width + ow) * vectors + vector;
      store(reinterpret_cast<Vector<T>*>(output) + offset, best);
      if constexpr (kWinners) {
        Pack<std::uint8_t, kLanes<T>> winner;
#pragma unroll
        for (int lane = 0; lane < kLanes<T>; ++lane) {
          winner.lane[lane] = find_winner<K>(
              best.lane[lane], top + 2 * row, height, left + 2 * column, width,
              [&](int r, int c) { return pixels[2 * column + c][2 * row + r].lane[lane]; });
        }
        store(reinterpret_cast<Pack<std::uint8_t, kLanes<T>>*>(winners) + offset, winner);
      }
    }
  }
}

/// For any window, layout and alignment: one output at a time, in the order of ATen's own kernel.
template <typename T, typename Winner, typename Index>
__global__ void __launch_bounds__(kThreads)
    any_kernel(const T* input, T* output, Winner* winners, Index count, Index channels, PoolAxis h,
               PoolAxis w, bool channels_last) {
  const auto height = static_cast<Index>(h.input);
  const auto width = static_cast<Index>(w.input);
  const auto out_height = static_cast<Index>(h.output);
  const auto out_width = static_cast<Index>(w.output);
  const Index step = channels_last ? channels : 1;  // from one pixel to the next
  for (Index index = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; index < count;
       index += static_cast<Index>(gridDim.x) * kThreads) {
    const Index pixel = index / step;
    const Index ow = pixel % out_width;
    const Index oh = pixel / out_width % out_height;
    const Index plane = pixel / out_width / out_height;
    const T* const source = input + plane * height * width * step + index % step;
    const Index top = oh * h.stride - h.padding;
    const Index left = ow * w.stride - w.padding;
    const Index first_row = top < 0 ? (h.dilation - 1 - top) / h.dilation : 0;
    const Index first_column = left < 0 ? (w.dilation - 1 - left) / w.dilation : 0;
    Wide<T> best = -INFINITY;
    Index position = first_row * w.kernel + first_column;
    for (Index i = first_row; i < h.kernel && top + i * h.dilation < height; ++i) {
      for (Index j = first_column; j < w.kernel && left + j * w.dilation < width; ++j) {
        const T element = source[((top + i * h.dilation) * width + left + j * w.dilation) * step];
        const Wide<T> value = widen(max_nan(element, T(0)));
        if (value > best || value != value) {
          best = value;
          position = i * w.kernel + j;
        }
      }
    }
    output[index] = narrow<T>(best);
    if (winners != nullptr) {
      const auto winner = static_cast<Winner>(position);
      winners[index] =
          best > 0 || best != best ? winner : static_cast<Winner>(winner | kDead<Winner>);
    }
  }
}

/// Uses vectors of N elements, or fewer if the row length is not a multiple of N.
template <typename T, int N, int K, bool kWinners>
bool launch_planes(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                   cudaStream_t stream) {
  if (g.w.output * 2 != g.w.input) {
    return false;
  }
  if (g.w.input % N != 0) {
    if constexpr (N > 2) {
      return launch_planes<T, N / 2, K, kWinners>(input, output, winners, g, stream);
    }
    return false;
  }
  const std::int64_t groups = g.w.input / N;
  const std::int64_t rows = ceil_div(g.h.output, kPlaneRows<K, kWinners>);
  const Grid grid{g.batch * g.channels * rows * groups};
  if (grid.fits()) {
    planes_kernel<T, N, K, kWinners><<<grid.blocks(), kThreads, 0, stream>>>(
        input, output, winners, static_cast<unsigned>(groups), static_cast<unsigned>(rows),
        static_cast<unsigned>(grid.threads), static_cast<int>(g.h.input),
        static_cast<int>(g.h.output));
  }
  return grid.fits();
}

template <typename T, int K, bool kWinners>
bool launch_pixels(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                   cudaStream_t stream) {
  const std::int64_t vectors = g.channels / kLanes<T>;
  const std::int64_t columns = ceil_div(g.w.output, kPixelColumns<K, kWinners>);
  constexpr std::int64_t kBand = kPixelBand<K, kWinners>;
  const std::int64_t bands = ceil_div(g.h.output, kBand * kPixelRows);
  const Grid grid{g.batch * bands * kBand * columns * vectors};
  if (g.channels % kLanes<T> != 0 || !grid.fits()) {
    return false;
  }
  pixels_kernel<T, K, kWinners><<<grid.blocks(), kThreads, 0, stream>>>(
      input, output, winners, static_cast<unsigned>(vectors), static_cast<unsigned>(columns),
      static_cast<unsigned>(bands), static_cast<unsigned>(grid.threads),
      static_cast<int>(g.h.input), static_cast<int>(g.w.input), static_cast<int>(g.h.output),
      static_cast<int>(g.w.output));
  return true;
}

template <typename T, int K, bool kWinners>
bool launch_vectorised(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                       cudaStream_t stream) {
  if (g.channels_last) {
    return launch_pixels<T, K, kWinners>(input, output, winners, g, stream);
  }
  return launch_planes<T, kLanes<T>, K, kWinners>(input, output, winners, g, stream);
}

template <typename T, int K>
bool launch_vectorised(const T* input, T* output, void* winners, const PoolGeometry& g,
                       cudaStream_t stream) {
  if (winners == nullptr) {
    return launch_vectorised<T, K, false>(input, output, nullptr, g, stream);
  }
  return launch_vectorised<T, K, true>(input, output, static_cast<std::uint8_t*>(winners), g,
                                       stream);
}

template <typename T, typename Winner>
void launch_any(const T* input, T* output, Winner* winners, const PoolGeometry& g,
                cudaStream_t stream) {
  const std::int64_t count = g.batch * g.channels * g.h.output * g.w.output;
  if (fits_32_bits(g)) {
    any_kernel<T, Winner, int><<<loop_blocks(count), kThreads, 0, stream>>>(
        input, output, winners, static_cast<int>(count), static_cast<int>(g.channels), g.h, g.w,
        g.channels_last);
  } else {
    any_kernel<T, Winner, std::int64_t><<<loop_blocks(count), kThreads, 0, stream>>>(
        input, output, winners, count, g.channels, g.h, g.w, g.channels_last);
  }
}

template <typename T>
void launch(const T* input, T* output, void* winners, const PoolGeometry& g, cudaStream_t stream) {
  const bool aligned = is_aligned(input) && is_aligned(output) && is_aligned(winners);
  if (aligned && has_windows(g, 3, 2, 1) &&
      launch_vectorised<T, 3>(input, output, winners, g, stream)) {
    return;
  }
  if (aligned && has_windows(g, 2, 2, 0) &&
      launch_vectorised<T, 2>(input, output, winners, g, stream)) {
    return;
  }
  if (winners_are_bytes(window_size(g))) {
    launch_any(input, output, static_cast<std::uint8_t*>(winners), g, stream);
  } else {
    launch_any(input, output, static_cast<std::uint32_t*>(winners), g, stream);
  }
}

}  // namespace

void launch_relu_max_pool2d(ElementType type, const void* input, void* output, void* winners,
                            const PoolGeometry& geometry, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    launch(static_cast<const T*>(input), static_cast<T*>(output), winners, geometry, stream);
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
