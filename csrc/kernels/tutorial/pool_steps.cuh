#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "kernels/relu_max_pool2d/pool_elements.cuh"
#include "kernels/tutorial/builds.cuh"

namespace convtime::tutorial {

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
  PoolSizes sizes;
  __device__ PoolSizes read() const { return sizes; }
};

namespace {  // each file's device code has separate constant memory

constexpr int kKnownSizes = 256;
__constant__ PoolSizes known_sizes[kKnownSizes];

struct ConstantMemory {
  int place;
  __device__ PoolSizes read() const { return known_sizes[place]; }
};

/// Return the index of the sizes in the current device's constant memory. They are never removed,
/// because pending kernels may still read them.
int place_in_constant_memory(const PoolSizes& sizes) {
  static std::mutex mutex;
  static std::map<int, std::vector<PoolSizes>> known;  // per device
  const std::lock_guard lock(mutex);
  int device = 0;
  CONVTIME_CUDA_CHECK(cudaGetDevice(&device));
  std::vector<PoolSizes>& places = known[device];
  const auto found = std::find(places.begin(), places.end(), sizes);
  if (found == places.end()) {
    if (places.size() == kKnownSizes) {
      throw std::runtime_error(
          "step 'constant_memory' keeps at most 256 geometries per process, got one more: use "
          "another step, or start a new process");
    }
    CONVTIME_CUDA_CHECK(
        cudaMemcpyToSymbol(known_sizes, &sizes, sizeof(sizes), places.size() * sizeof(sizes)));
    // The copy is asynchronous, and PyTorch's streams do not wait for it.
    CONVTIME_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
    places.push_back(sizes);
    return static_cast<int>(places.size()) - 1;
  }
  return static_cast<int>(found - places.begin());
}

}  // namespace

/// Like Parameters, but the window is a compile-time constant: the compiler unrolls loops and turns
/// divisions into shifts.
template <int K>
struct CompiledWindow {
  PoolSizes sizes;
  __device__ PoolSizes read() const {
    PoolSizes known = sizes;
    known.kernel = K;
    known.stride = 2;
    known.padding = K - 2;
    return known;
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
__device__ Position position_of(unsigned thread, const PoolSizes& s) {
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
__device__ inline unsigned offset_of(const Position& at, const PoolSizes& s, int height,
                                     int width) {
  return s.channels_last
             ? ((at.image * height + at.row) * width + at.column) * s.channels + at.channel
             : ((at.image * s.channels + at.channel) * height + at.row) * width + at.column;
}

__device__ inline unsigned input_offset(const Position& at, const PoolSizes& s) {
  return offset_of(at, s, s.height, s.width);
}

__device__ inline unsigned output_offset(const Position& at, const PoolSizes& s) {
  return offset_of(at, s, s.out_height, s.out_width);
}

// --- The steps ----------------------------------------------------------------------------------

template <typename T, Neighbours kNeighbours>
struct OutputPerThread {
  template <typename Geometry>
  __device__ void operator()(const T* input, T* output, const Geometry& geometry) const {
    const PoolSizes s = geometry.read();
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
  __device__ void operator()(const T* input, T* output, const Parameters& geometry) const {
    using Tile = Tile<kChannelsLast>;
    static_assert(Tile::kChannels * Tile::kRows * Tile::kColumns == kThreads);
    extern __shared__ __align__(16) unsigned char shared[];
    T* const tile = reinterpret_cast<T*>(shared);
    const PoolSizes s = geometry.read();
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

  __device__ void operator()(const T* input, T* output, const CompiledWindow<K>& geometry) const {
    const PoolSizes s = geometry.read();
    if (s.width % kColumns == 0 && is_aligned_to_vectors(input) && is_aligned_to_vectors(output)) {
      pool<true>(input, output, s);
    } else {
      pool<false>(input, output, s);
    }
  }

  template <bool kWhole>
  __device__ static void pool(const T* input, T* output, const PoolSizes& s) {
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

  __device__ void operator()(const T* input, T* output, const CompiledWindow<K>& geometry) const {
    const PoolSizes s = geometry.read();
    if (s.channels % kChannels == 0 && is_aligned_to_vectors(input) &&
        is_aligned_to_vectors(output)) {
      pool<true>(input, output, s);
    } else {
      pool<false>(input, output, s);
    }
  }

  template <bool kWhole>
  __device__ static void pool(const T* input, T* output, const PoolSizes& s) {
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

// --- The choice ---------------------------------------------------------------------------------

/// Call use(kernel, geometry, launch) with the kernel from Builds.
template <typename T, typename Builds, typename Use>
void with_pool_kernel(const PoolCall& call, const Use& use) {
  const PoolSizes& s = call.sizes;
  const std::size_t outputs =
      static_cast<std::size_t>(s.batch) * s.channels * s.out_height * s.out_width;
  const auto take = [&](auto step, const auto& geometry, const Launch& launch) {
    using Geometry = std::decay_t<decltype(geometry)>;
    use(Builds::template kernel<decltype(step), const T*, T*, Geometry>(call.build), geometry,
        launch);
  };
  const auto take_output_per_thread = [&](const auto& geometry, bool coalesced) {
    if (s.channels_last == coalesced) {
      take(OutputPerThread<T, Neighbours::kChannels>(), geometry, {blocks_of(outputs)});
    } else {
      take(OutputPerThread<T, Neighbours::kColumns>(), geometry, {blocks_of(outputs)});
    }
  };
  const auto with_window = [&](const auto& function) {
    if (s.kernel == 3) {
      function(CompiledWindow<3>{s}, std::integral_constant<int, 3>());
    } else {
      function(CompiledWindow<2>{s}, std::integral_constant<int, 2>());
    }
  };
  const auto take_tiles = [&](auto step, auto tile) {
    const auto count = [](std::size_t size, std::size_t of) { return (size + of - 1) / of; };
    take(step, Parameters{s},
         {s.batch * count(s.channels, tile.kChannels) * count(s.out_height, tile.kRows) *
              count(s.out_width, tile.kColumns),
          static_cast<std::size_t>(tile.bytes(s.kernel, s.stride, sizeof(T)))});
  };
  switch (call.step) {
    case PoolStep::kNaive:
      return take_output_per_thread(Parameters{s}, false);
    case PoolStep::kCoalesced:
      return take_output_per_thread(Parameters{s}, true);
    case PoolStep::kConstantMemory:
      return take_output_per_thread(ConstantMemory{place_in_constant_memory(s)}, true);
    case PoolStep::kUnrolled:
      return with_window(
          [&](const auto& geometry, auto) { take_output_per_thread(geometry, true); });
    case PoolStep::kSharedMemory:
      if (s.channels_last) {
        return take_tiles(SharedTile<T, true>(), Tile<true>());
      }
      return take_tiles(SharedTile<T, false>(), Tile<false>());
    case PoolStep::kVectorised:
      return with_window([&](const auto& geometry, auto k) {
        constexpr int K = decltype(k)::value;
        if (s.channels_last) {
          using Step = ChannelsPerThread<T, K>;
          const std::size_t groups = (s.channels + Step::kChannels - 1) / Step::kChannels;
          take(
              Step(), geometry,
              {blocks_of(static_cast<std::size_t>(s.batch) * s.out_height * s.out_width * groups)});
        } else {
          using Step = ColumnsPerThread<T, K>;
          const std::size_t groups = (s.out_width + Step::kOutputs - 1) / Step::kOutputs;
          take(Step(), geometry,
               {blocks_of(static_cast<std::size_t>(s.batch) * s.channels * s.out_height * groups)});
        }
      });
  }
}

template <typename Builds>
void launch_pool_of(const PoolCall& call, cudaStream_t stream) {
  for_step_type(call.type, [&](auto number) {
    using T = decltype(number);
    with_pool_kernel<T, Builds>(call, [&](auto kernel, const auto& geometry, const Launch& launch) {
      kernel<<<launch.blocks, kThreads, launch.shared_bytes, stream>>>(
          static_cast<const T*>(call.input), static_cast<T*>(call.output), geometry);
    });
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

template <typename Builds>
KernelFacts pool_facts_of(const PoolCall& call) {
  KernelFacts facts{};
  for_step_type(call.type, [&](auto number) {
    with_pool_kernel<decltype(number), Builds>(
        call,
        [&](auto kernel, const auto&, const Launch& launch) { facts = facts_of(kernel, launch); });
  });
  return facts;
}

// Functions for Build::kFastMath, which is compiled in a separate file.
void launch_fast_math_pool(const PoolCall& call, cudaStream_t stream);
KernelFacts fast_math_pool_facts(const PoolCall& call);

}  // namespace convtime::tutorial
