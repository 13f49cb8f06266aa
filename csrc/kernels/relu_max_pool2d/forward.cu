#include <cmath>

#include "core/cuda_check.h"
#include "kernels/relu_max_pool2d/direct.h"
#include "kernels/relu_max_pool2d/pool_elements.cuh"

namespace convtime {
namespace {

using namespace pool;

// The vectorized kernels support square windows of K × K elements without dilation. A position
// outside the input is clamped to the nearest one inside, which is in the same window: a repeated
// element does not change a maximum.

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

/// For (N, C, H, W), a stride of 2 and a padding of K - 2: a thread loads N elements of each row,
/// and has half as many outputs in each of its output rows. For K = 3, the column to the left comes
/// from the neighboring lane.
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

/// For (N, H, W, C): a thread has 16 bytes of channels in a tile of outputs, whose windows
/// have a stride of S.
template <typename T, int K, int S, bool kWinners>
__global__ void __launch_bounds__(kThreads)
    pixels_kernel(const T* input, T* output, std::uint8_t* winners, unsigned vectors,
                  unsigned column_groups, unsigned bands, unsigned threads, int height, int width,
                  int out_height, int out_width, int padding_h, int padding_w) {
  constexpr int kOutputRows = kPixelRows;
  constexpr int kOutputColumns = kPixelColumns<K, kWinners>;
  constexpr unsigned kBand = kPixelBand<K, kWinners>;
  constexpr int kRows = S * (kOutputRows - 1) + K;
  constexpr int kColumns = S * (kOutputColumns - 1) + K;
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
  const int top = S * first_row - padding_h;
  const int left = S * first_column - padding_w;

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
      // Where windows overlap, other threads hit in L1: streaming loads were slower.
      pixels[j][i] = K == S ? load_streaming(source) : load(source);
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
      maxima[j][row] = max_nan(pixels[j][S * row], pixels[j][S * row + 1]);
      if constexpr (K == 3) {
        maxima[j][row] = max_nan(maxima[j][row], pixels[j][S * row + 2]);
      }
    }
    if (j < K - 1 || (j - K + 1) % S != 0) {
      continue;
    }
    const int column = (j - K + 1) / S;
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
              best.lane[lane], top + S * row, height, left + S * column, width,
              [&](int r, int c) { return pixels[S * column + c][S * row + r].lane[lane]; });
        }
        store(reinterpret_cast<Pack<std::uint8_t, kLanes<T>>*>(winners) + offset, winner);
      }
    }
  }
}

/// For planes of any size: one output at a time, in the order of ATen's own kernel.
template <typename T, typename Winner>
__global__ void __launch_bounds__(kThreads)
    huge_kernel(const T* input, T* output, Winner* winners, std::int64_t count,
                std::int64_t channels, PoolAxis h, PoolAxis w, bool channels_last) {
  const std::int64_t height = h.input;
  const std::int64_t width = w.input;
  const std::int64_t out_height = h.output;
  const std::int64_t out_width = w.output;
  const std::int64_t step = channels_last ? channels : 1;  // from one pixel to the next
  for (std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t pixel = index / step;
    const std::int64_t ow = pixel % out_width;
    const std::int64_t oh = pixel / out_width % out_height;
    const std::int64_t plane = pixel / out_width / out_height;
    const T* const source = input + plane * height * width * step + index % step;
    const std::int64_t top = oh * h.stride - h.padding;
    const std::int64_t left = ow * w.stride - w.padding;
    const std::int64_t first_row = top < 0 ? (h.dilation - 1 - top) / h.dilation : 0;
    const std::int64_t first_column = left < 0 ? (w.dilation - 1 - left) / w.dilation : 0;
    Wide<T> best = -INFINITY;
    std::int64_t position = first_row * w.kernel + first_column;
    for (std::int64_t i = first_row; i < h.kernel && top + i * h.dilation < height; ++i) {
      for (std::int64_t j = first_column; j < w.kernel && left + j * w.dilation < width; ++j) {
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

template <typename T, int K, bool kWinners>
bool launch_planes(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                   cudaStream_t stream) {
  constexpr int N = kLanes<T>;
  if (!has_windows(g, K, 2) || !has_padding(g, K - 2) || g.w.output * 2 != g.w.input ||
      g.w.input % N != 0) {
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

template <typename T, int K, int S, bool kWinners>
bool launch_pixels(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                   cudaStream_t stream) {
  const std::int64_t vectors = g.channels / kLanes<T>;
  const std::int64_t columns = ceil_div(g.w.output, kPixelColumns<K, kWinners>);
  constexpr std::int64_t kBand = kPixelBand<K, kWinners>;
  const std::int64_t bands = ceil_div(g.h.output, kBand * kPixelRows);
  const Grid grid{g.batch * bands * kBand * columns * vectors};
  if (!has_windows(g, K, S) || g.channels % kLanes<T> != 0 || !grid.fits()) {
    return false;
  }
  pixels_kernel<T, K, S, kWinners><<<grid.blocks(), kThreads, 0, stream>>>(
      input, output, winners, static_cast<unsigned>(vectors), static_cast<unsigned>(columns),
      static_cast<unsigned>(bands), static_cast<unsigned>(grid.threads),
      static_cast<int>(g.h.input), static_cast<int>(g.w.input), static_cast<int>(g.h.output),
      static_cast<int>(g.w.output), g.h.padding, g.w.padding);
  return true;
}

template <typename T, bool kWinners>
bool launch_vectorized(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                       cudaStream_t stream) {
  if (!is_aligned(input) || !is_aligned(output) || !is_aligned(winners)) {
    return false;
  }
  if (g.channels_last) {
    return launch_pixels<T, 3, 2, kWinners>(input, output, winners, g, stream) ||
           launch_pixels<T, 2, 2, kWinners>(input, output, winners, g, stream) ||
           launch_pixels<T, 3, 1, kWinners>(input, output, winners, g, stream) ||
           (sizeof(T) == 2 && launch_pixels<T, 2, 1, kWinners>(input, output, winners, g, stream));
  }
  return launch_planes<T, 3, kWinners>(input, output, winners, g, stream) ||
         launch_planes<T, 2, kWinners>(input, output, winners, g, stream);
}

template <typename T, typename Winner>
void launch_huge(const T* input, T* output, Winner* winners, const PoolGeometry& g,
                 cudaStream_t stream) {
  const std::int64_t count = g.batch * g.channels * g.h.output * g.w.output;
  huge_kernel<<<loop_blocks(count), kThreads, 0, stream>>>(input, output, winners, count,
                                                           g.channels, g.h, g.w, g.channels_last);
}

template <typename T>
bool launch_vectorized(const T* input, T* output, void* winners, const PoolGeometry& g,
                       cudaStream_t stream) {
  if (winners == nullptr) {
    return launch_vectorized<T, false>(input, output, nullptr, g, stream);
  }
  return launch_vectorized<T, true>(input, output, static_cast<std::uint8_t*>(winners), g, stream);
}

template <typename T>
void launch_huge(const T* input, T* output, void* winners, const PoolGeometry& g,
                 cudaStream_t stream) {
  if (winners_are_bytes(window_size(g))) {
    launch_huge(input, output, static_cast<std::uint8_t*>(winners), g, stream);
  } else {
    launch_huge(input, output, static_cast<std::uint32_t*>(winners), g, stream);
  }
}

}  // namespace

void launch_relu_max_pool2d(ElementType type, const void* input, void* output, void* winners,
                            const PoolGeometry& geometry, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const auto* const from = static_cast<const T*>(input);
    auto* const to = static_cast<T*>(output);
    if (!launch_vectorized(from, to, winners, geometry, stream) &&
        !launch_forward_direct(type, input, output, winners, geometry, stream)) {
      launch_huge(from, to, winners, geometry, stream);
    }
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
