#include <cmath>
#include <type_traits>

#include "kernels/relu_max_pool2d/tiles.cuh"

namespace convtime::pool {
namespace {

struct ForwardTiling {
  Tiling tiling;
  Windows h;
  Windows w;
  SourceShape source;
  int source_rows;  // per plane, at most
  std::size_t source_bytes;
  Division strips;  // of a tile's rows
};

/// Compute outputs from windows of K × K elements with a stride of S, whose dilation is 1. A thread
/// has a strip of kStrip outputs below each other. A position outside the input is clamped to the
/// nearest one inside, which is in the same window: a repeated element does not change a maximum.
template <int K, int S, bool kWinners, typename T>
__device__ void pool_strips(const ForwardTiling& f, const Tile& tile, const Source<T, 1>& source,
                            Range rows, Range columns, T* output, std::uint8_t* winners) {
  constexpr int kRows = (kStrip - 1) * S + K;
  const Tiling& t = f.tiling;
  const int tasks = tile.planes * f.strips.divisor() * t.row_size.divisor();
  for (int task = static_cast<int>(threadIdx.x); task < tasks;
       task += static_cast<int>(blockDim.x)) {
    int column = task;
    int strip = t.row_size.split(column);
    const int plane = f.strips.split(strip);
    const int ow = tile.columns.first + column;
    const int oh = tile.rows.first + strip * kStrip;
    if (ow >= tile.columns.end || oh >= tile.rows.end) {
      continue;
    }
    const int left = ow * S - f.w.padding;
    const int top = oh * S - f.h.padding;
    int inputs[K];
#pragma unroll
    for (int j = 0; j < K; ++j) {
      inputs[j] = clamp(left + j, f.w.input - 1);
    }
    const int first_row = plane * rows.size() - rows.first;
    T maxima[kRows];
    int positions[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = max(rows.first, min(top + i, rows.end - 1));
      const Pack<T, 1>* const from = source.row(first_row + row);
      if constexpr (kWinners) {
        Leader<T, 1> leader(0, inputs[0] - left);
#pragma unroll
        for (int j = 0; j < K; ++j) {
          leader.challenge(from[inputs[j] - columns.first], inputs[j] - left);
        }
        maxima[i] = leader.values().lane[0];
        positions[i] = (row - top) * K + leader.position[0];
      } else {
        maxima[i] = T(0);
#pragma unroll
        for (int j = 0; j < K; ++j) {
          maxima[i] = max_nan(maxima[i], from[inputs[j] - columns.first].lane[0]);
        }
      }
    }
    int offset = (plane * f.h.output + oh) * f.w.output + ow;
#pragma unroll
    for (int k = 0; k < kStrip; ++k) {
      if (oh + k >= tile.rows.end) {
        break;
      }
      if constexpr (kWinners) {
        Leader<T, 1> leader(widen(maxima[k * S]), positions[k * S] - k * S * K);
#pragma unroll
        for (int i = 1; i < K; ++i) {
          leader.challenge(0, widen(maxima[k * S + i]), positions[k * S + i] - k * S * K);
        }
        output[offset] = leader.values().lane[0];
        winners[offset] = leader.template winners<std::uint8_t>().lane[0];
      } else {
        T best = maxima[k * S];
#pragma unroll
        for (int i = 1; i < K; ++i) {
          best = max_nan(best, maxima[k * S + i]);
        }
        output[offset] = best;
      }
      offset += f.w.output;
    }
  }
}

/// Compute outputs from any windows: the maxima of each row first, then those of columns of these.
template <bool kWinners, typename T, int N>
__device__ void pool_rows_and_columns(const ForwardTiling& f, const Tile& tile,
                                      const Source<T, N>& source, Range rows, Range columns,
                                      unsigned char* shared, T* output, std::uint8_t* winners) {
  const Tiling& t = f.tiling;
  const int size = t.row_size.divisor();
  const int all_rows = tile.planes * rows.size();
  auto* const maxima = reinterpret_cast<Pack<T, N>*>(shared + f.source_bytes);
  auto* const positions =
      reinterpret_cast<Pack<std::uint8_t, N>*>(maxima + t.planes_per_block * f.source_rows * size);
  const auto column_of = [&](int& channel) {
    const int ow = tile.columns.first + t.slice.split(channel);
    return ow < tile.columns.end && tile.channel + channel < t.channels ? ow : -1;
  };

  for (int task = static_cast<int>(threadIdx.x); task < all_rows * size;
       task += static_cast<int>(blockDim.x)) {
    int channel = task;
    const int row = t.row_size.split(channel);
    const int ow = column_of(channel);
    if (ow < 0) {
      continue;
    }
    const int left = f.w.start(ow);
    const Range window = f.w.elements(left);
    const float least = window.size() > 0 ? 0.0f : -INFINITY;
    const int step = f.w.dilation.divisor() * t.slice.divisor();
    const Pack<T, N>* from = source.row(row) + (left - columns.first) * t.slice.divisor() +
                             window.first * step + channel;
    if constexpr (kWinners) {
      Leader<T, N> leader(least, window.first);
      for (int j = window.first; j < window.end; ++j, from += step) {
        leader.challenge(load_shared(from), j);
      }
      Pack<std::uint8_t, N> at;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        at.lane[i] = static_cast<std::uint8_t>(leader.position[i]);
      }
      store(maxima + task, leader.values());
      store(positions + task, at);
    } else {
      Pack<T, N> best = filled<T, N>(least);
#pragma unroll 4
      for (int j = window.first; j < window.end; ++j, from += step) {
        best = max_nan(best, load_shared(from));
      }
      store(maxima + task, best);
    }
  }
  __syncthreads();

  const int tasks = tile.planes * t.rows.divisor() * size;
  for (int task = static_cast<int>(threadIdx.x); task < tasks;
       task += static_cast<int>(blockDim.x)) {
    int channel = task;
    int row = t.row_size.split(channel);
    const int in_row = channel;
    const int plane = t.rows.split(row);
    const int oh = tile.rows.first + row;
    const int ow = column_of(channel);
    if (ow < 0 || oh >= tile.rows.end) {
      continue;
    }
    const int top = f.h.start(oh);
    const Range window = f.h.elements(top);
    const int step = f.h.dilation.divisor() * size;
    int from = (plane * rows.size() + top - rows.first) * size + window.first * step + in_row;
    const int offset =
        ((plane * f.h.output + oh) * f.w.output + ow) * t.channels + tile.channel + channel;
    Pack<T, N>* const to = reinterpret_cast<Pack<T, N>*>(output) + offset;
    if constexpr (kWinners) {
      Leader<T, N> leader(-INFINITY, window.first * f.w.kernel);
      for (int i = window.first; i < window.end; ++i, from += step) {
        const Pack<T, N> values = load_shared(maxima + from);
        const Pack<std::uint8_t, N> at = load_shared(positions + from);
#pragma unroll
        for (int lane = 0; lane < N; ++lane) {
          leader.challenge(lane, widen(values.lane[lane]), i * f.w.kernel + at.lane[lane]);
        }
      }
      *to = leader.values();
      reinterpret_cast<Pack<std::uint8_t, N>*>(winners)[offset] =
          leader.template winners<std::uint8_t>();
    } else {
      Pack<T, N> best = filled<T, N>(-INFINITY);
#pragma unroll 4
      for (int i = window.first; i < window.end; ++i, from += step) {
        best = max_nan(best, load_shared(maxima + from));
      }
      *to = best;
    }
  }
}

/// K and S are zero if windows are not known at compile time.
template <typename T, int N, int K, int S, bool kWinners>
__global__ void __launch_bounds__(kMaxTileThreads)
    forward_kernel(const T* input, T* output, std::uint8_t* winners, const ForwardTiling f) {
  extern __shared__ uint4 shared[];
  const Tile tile = tile_of_block(f.tiling, f.h.output, f.w.output);
  const bool has_whole_planes = f.tiling.row_tiles.divisor() == 1;
  const Range rows = has_whole_planes ? Range{0, f.h.input} : f.h.inputs(tile.rows);
  const Range columns = f.source.is_contiguous ? Range{0, f.w.input} : f.w.inputs(tile.columns);
  const Source<T, N> source(shared, f.source, input, f.h.input, f.w.input, f.tiling, tile, rows,
                            columns);
  const std::int64_t first = tile.plane * f.h.output * f.w.output * f.tiling.channels * N;
  output += first;
  winners += kWinners ? first : 0;
  await_copies();
  if constexpr (K > 0) {
    pool_strips<K, S, kWinners>(f, tile, source, rows, columns, output, winners);
  } else {
    pool_rows_and_columns<kWinners>(f, tile, source, rows, columns,
                                    reinterpret_cast<unsigned char*>(shared), output, winners);
  }
}

template <typename T, int N, int K, int S, bool kWinners>
bool launch(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
            cudaStream_t stream) {
  // Four packs are two sectors of memory, and leave room for tiles that are large in comparison
  // with their windows.
  constexpr std::int64_t kSlice = 4;
  constexpr std::size_t kSharedBytes = 16 * 1024;
  const std::int64_t channels = g.channels_last ? g.channels / N : 1;
  const std::int64_t slice = std::min(channels, kSlice);
  const TileSize all{g.channels_last ? g.batch : g.batch * g.channels, g.h.output, g.w.output};
  const auto inputs = [](const PoolAxis& axis, std::int64_t outputs) {
    const std::int64_t reach = (axis.kernel - std::int64_t{1}) * axis.dilation + 1;
    return outputs == axis.output ? axis.input
                                  : std::min(axis.input, (outputs - 1) * axis.stride + reach);
  };
  const auto source_of = [&](const TileSize& size) {
    return source_shape<T, N>({size.planes, inputs(g.h, size.rows), inputs(g.w, size.columns)},
                              g.w.input, slice);
  };
  const auto bytes_of = [&](const TileSize& size) {
    const std::int64_t rows = size.planes * inputs(g.h, size.rows);
    const std::size_t per_maximum = N * (sizeof(T) + (kWinners ? 1 : 0));
    return shared_bytes<T, N>(source_of(size), rows) +
           (K == 0 ? static_cast<std::size_t>(rows * size.columns * slice) * per_maximum : 0);
  };
  const std::optional<TileSize> size = choose_tile(all, kSharedBytes, bytes_of);
  if (!size) {
    return false;
  }
  const SourceShape source = source_of(*size);
  const std::int64_t rows = inputs(g.h, size->rows);
  const ForwardTiling f{make_tiling(*size, all, channels, slice),
                        Windows(g.h),
                        Windows(g.w),
                        source,
                        static_cast<int>(rows),
                        shared_bytes<T, N>(source, size->planes * rows),
                        Division(ceil_div(size->rows, kStrip))};
  const std::int64_t blocks = count_blocks(f.tiling);
  if (blocks > kMax32) {
    return false;
  }
  const std::int64_t tasks =
      size->planes * size->columns * slice * (K == 0 ? size->rows : ceil_div(size->rows, kStrip));
  forward_kernel<T, N, K, S, kWinners>
      <<<static_cast<unsigned>(blocks), threads_for(tasks), bytes_of(*size), stream>>>(
          input, output, winners, f);
  return true;
}

template <typename T, bool kWinners>
bool launch(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
            cudaStream_t stream) {
  if (g.channels_last) {
    return g.channels % kLanes<T> == 0 && is_aligned(input) && is_aligned(output) &&
           is_aligned(winners) &&
           launch<T, kLanes<T>, 0, 0, kWinners>(input, output, winners, g, stream);
  }
  if (has_windows(g, 3, 2)) {
    return launch<T, 1, 3, 2, kWinners>(input, output, winners, g, stream);
  }
  if (has_windows(g, 3, 1)) {
    return launch<T, 1, 3, 1, kWinners>(input, output, winners, g, stream);
  }
  return launch<T, 1, 0, 0, kWinners>(input, output, winners, g, stream);
}

}  // namespace

bool launch_forward_tiles(ElementType type, const void* input, void* output, void* winners,
                          const PoolGeometry& g, cudaStream_t stream) {
  if (!planes_fit_32_bits(g, g.channels_last ? g.channels : 1) ||
      (winners != nullptr && !winners_are_bytes(window_size(g)))) {
    return false;
  }
  bool launched = false;
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const auto* const from = static_cast<const T*>(input);
    auto* const to = static_cast<T*>(output);
    launched = winners == nullptr
                   ? launch<T, false>(from, to, nullptr, g, stream)
                   : launch<T, true>(from, to, static_cast<std::uint8_t*>(winners), g, stream);
  });
  return launched;
}

}  // namespace convtime::pool
