#include "kernels/conv_epilogue/conv_epilogue.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "core/cuda_check.h"
#include "kernels/activate.cuh"
#include "kernels/elements.cuh"

namespace convtime {
namespace {

using namespace elements;

template <Activation kActivation>
using Constant = std::integral_constant<Activation, kActivation>;

template <typename T>
struct Arguments {
  T* y;
  const T* z;  // null for none
  const T* b;  // null for none
  Wide<T> alpha;
  Wide<T> negative_slope;
};

template <Activation kActivation, typename T>
__device__ T finish(const Arguments<T>& a, T y, T z, T bias) {
  Wide<T> x = widen(y);
  if (a.z != nullptr) {
    x += a.alpha * widen(z);
  }
  if (a.b != nullptr) {
    x += widen(bias);
  }
  return narrow<T>(activate<kActivation>(x, a.negative_slope));
}

/// In memory, `side` adjacent elements belong to one channel, the next ones to the next channel,
/// and so on, and after the last channel to the first one. The first `packs` packs of elements are
/// read and written as such, all others one by one. Index holds `count` and the number of threads
/// more.
template <Activation kActivation, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    epilogue_kernel(Arguments<T> a, Index count, Index packs, Index channels, Index side) {
  constexpr int kPack = kLanes<T>;
  const Index thread = Index{blockIdx.x} * kThreads + threadIdx.x;
  const Index threads = Index{gridDim.x} * kThreads;
  const bool bias_in_packs = side == 1 && channels % kPack == 0 && is_aligned(a.b);
  for (Index i = thread; i < packs; i += threads) {
    Vector<T>* const place = reinterpret_cast<Vector<T>*>(a.y) + i;
    const Vector<T> old = *place;
    Vector<T> addend{};
    if (a.z != nullptr) {
      addend = load(reinterpret_cast<const Vector<T>*>(a.z) + i);
    }
    Vector<T> bias{};
    if (a.b != nullptr && bias_in_packs) {
      bias = load(reinterpret_cast<const Vector<T>*>(a.b) + i % (channels / kPack));
    } else if (a.b != nullptr) {
      const Index sides = i * kPack / side;
      Index left = side - (i * kPack - sides * side);
      Index channel = sides % channels;
      bias.lane[0] = load(a.b + channel);
#pragma unroll
      for (int lane = 1; lane < kPack; ++lane) {
        bias.lane[lane] = bias.lane[lane - 1];
        if (--left == 0) {
          left = side;
          channel = channel + 1 == channels ? 0 : channel + 1;
          bias.lane[lane] = load(a.b + channel);
        }
      }
    }
    Vector<T> result;
#pragma unroll
    for (int lane = 0; lane < kPack; ++lane) {
      result.lane[lane] =
          finish<kActivation>(a, old.lane[lane], addend.lane[lane], bias.lane[lane]);
    }
    store(place, result);
  }
  for (Index i = packs * kPack + thread; i < count; i += threads) {
    const T addend = a.z != nullptr ? load(a.z + i) : T();
    const T bias = a.b != nullptr ? load(a.b + i / side % channels) : T();
    a.y[i] = finish<kActivation>(a, a.y[i], addend, bias);
  }
}

template <typename T>
Arguments<T> arguments_of(const ConvEpilogue& e) {
  return {static_cast<T*>(e.y), static_cast<const T*>(e.z), static_cast<const T*>(e.b),
          static_cast<Wide<T>>(e.alpha), static_cast<Wide<T>>(e.negative_slope)};
}

template <Activation kActivation, typename T, typename Index>
void launch(const ConvEpilogue& e, cudaStream_t stream) {
  const bool in_packs = is_aligned(e.y) && is_aligned(e.z);
  const std::int64_t packs = in_packs ? e.count / kLanes<T> : 0;
  const std::int64_t steps = in_packs ? packs + 1 : e.count;
  epilogue_kernel<kActivation, T, Index><<<loop_blocks(steps), kThreads, 0, stream>>>(
      arguments_of<T>(e), static_cast<Index>(e.count), static_cast<Index>(packs),
      static_cast<Index>(e.channels), static_cast<Index>(e.channels_last ? 1 : e.plane));
}

/// Channels are last; in `from`, pixels are `pitch` apart. y and z have no gaps, and y is aligned.
/// Threads have packs of y. Index holds `count` and the number of threads more.
template <Activation kActivation, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    unpadding_kernel(Arguments<T> a, const T* from, Index count, Index channels, Index pitch) {
  constexpr int kPack = kLanes<T>;
  const Index first = (Index{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (first >= count) {
    return;
  }
  const Index pixel = first / channels;
  Index channel = first - pixel * channels;
  Index source = pixel * pitch + channel;
  const bool is_whole = first + kPack <= count;
  const bool z_in_packs = is_whole && is_aligned(a.z);
  Vector<T> addend{};
  if (a.z != nullptr && z_in_packs) {
    addend = load(reinterpret_cast<const Vector<T>*>(a.z + first));
  }
  Vector<T> result;
#pragma unroll
  for (int lane = 0; lane < kPack; ++lane) {
    if (first + lane < count) {
      if (a.z != nullptr && !z_in_packs) {
        addend.lane[lane] = load(a.z + first + lane);
      }
      const T bias = a.b != nullptr ? load(a.b + channel) : T();
      result.lane[lane] = finish<kActivation>(a, load(from + source), addend.lane[lane], bias);
    }
    ++channel;
    ++source;
    if (channel == channels) {
      channel = 0;
      source += pitch - channels;
    }
  }
  if (is_whole) {
    store(reinterpret_cast<Vector<T>*>(a.y + first), result);
    return;
  }
#pragma unroll
  for (int lane = 0; lane < kPack; ++lane) {
    if (first + lane < count) {
      a.y[first + lane] = result.lane[lane];
    }
  }
}

// --- Transposition: matrices of rows × columns, one for each image. Rows of what is read are
// `pitch` apart. The result, like z, has a row for each column, without gaps. Where there is a
// bias, columns are channels.

/// Groups of 16 bytes that the threads of a warp have next to each other: they read lines of 128
/// bytes, and write lines of 64 bytes.
constexpr unsigned kColumnGroups = 8;
constexpr unsigned kRowGroups = 4;

/// A thread transposes a square in its registers, whose sides are 16 bytes long. The number of rows
/// and the pitch are multiples of that. Pointers are aligned.
template <Activation kActivation, typename T>
__global__ void __launch_bounds__(kThreads)
    transposing_squares_kernel(Arguments<T> a, const T* from, unsigned images, unsigned rows,
                               unsigned columns, unsigned pitch, unsigned row_tiles,
                               unsigned column_tiles) {
  constexpr unsigned kPack = kLanes<T>;
  const unsigned tile = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const unsigned rest = tile / row_tiles;
  const unsigned row = (tile % row_tiles * kRowGroups + lane / kColumnGroups) * kPack;
  const unsigned column = (rest % column_tiles * kColumnGroups + lane % kColumnGroups) * kPack;
  if (row >= rows || column >= columns || rest / column_tiles >= images) {
    return;
  }
  const std::size_t first_row = std::size_t{rest / column_tiles} * rows;
  const T* const square = from + (first_row + row) * pitch + column;
  const std::size_t to = first_row * columns + std::size_t{column} * rows + row;
  const unsigned count = min(kPack, columns - column);
  Vector<T> old[kPack];
  Vector<T> addend[kPack] = {};
  Vector<T> bias{};
#pragma unroll
  for (unsigned i = 0; i < kPack; ++i) {
    old[i] = load(reinterpret_cast<const Vector<T>*>(square + std::size_t{i} * pitch));
  }
  if (a.b != nullptr && count == kPack && is_aligned(a.b)) {
    bias = load(reinterpret_cast<const Vector<T>*>(a.b + column));
  } else if (a.b != nullptr) {
#pragma unroll
    for (unsigned j = 0; j < kPack; ++j) {
      bias.lane[j] = j < count ? load(a.b + column + j) : T();
    }
  }
#pragma unroll
  for (unsigned j = 0; j < kPack; ++j) {
    if (j < count && a.z != nullptr) {
      addend[j] = load(reinterpret_cast<const Vector<T>*>(a.z + to + std::size_t{j} * rows));
    }
  }
#pragma unroll
  for (unsigned j = 0; j < kPack; ++j) {
    if (j >= count) {
      return;
    }
    Vector<T> result;
#pragma unroll
    for (unsigned i = 0; i < kPack; ++i) {
      result.lane[i] = finish<kActivation>(a, old[i].lane[j], addend[j].lane[i], bias.lane[j]);
    }
    store(reinterpret_cast<Vector<T>*>(a.y + to + std::size_t{j} * rows), result);
  }
}

/// Elements of a tile of a matrix, and threads for them. A thread loads all of its elements at
/// once: 16 in 32 bits.
template <typename T>
constexpr unsigned kTileElements = 16384 / sizeof(T);
constexpr unsigned kTileThreads = 256;

/// The shape of a tile: its product is kTileElements.
struct TileShape {
  unsigned log_rows;
  unsigned log_columns;
  __host__ __device__ unsigned rows() const { return 1U << log_rows; }
  __host__ __device__ unsigned columns() const { return 1U << log_columns; }
};

/// Return a shape whose sides are about equal, unless the matrix is narrower on one side.
TileShape tile_shape(unsigned elements, std::int64_t rows, std::int64_t columns) {
  const int log_elements = std::countr_zero(elements);
  const auto log_side = [&](std::int64_t side) {
    return std::min(log_elements / 2, static_cast<int>(std::bit_width(std::uint64_t(side - 1))));
  };
  const bool is_narrow = log_side(columns) < log_elements / 2;
  const int log_rows = is_narrow ? log_elements - log_side(columns) : log_side(rows);
  return {static_cast<unsigned>(log_rows), static_cast<unsigned>(log_elements - log_rows)};
}

/// Transpose any matrices. In shared memory, a column of padding lets the threads of a warp that
/// read a column of elements use different banks.
template <Activation kActivation, typename T>
__global__ void __launch_bounds__(kTileThreads)
    transposing_tiles_kernel(Arguments<T> a, const T* from, TileShape shape, unsigned rows,
                             unsigned columns, unsigned pitch, unsigned row_tiles,
                             unsigned column_tiles) {
  constexpr unsigned kEach = kTileElements<T> / kTileThreads;
  __shared__ T tile[2 * kTileElements<T>];
  const unsigned tile_pitch = shape.columns() + 1;
  const unsigned first_column = blockIdx.x % column_tiles * shape.columns();
  const unsigned rest = blockIdx.x / column_tiles;
  const unsigned first_row = rest % row_tiles * shape.rows();
  const std::size_t image_row = std::size_t{rest / row_tiles} * rows;
  const std::size_t image = image_row * columns;
  const T* const image_from = from + image_row * pitch;
  // Call action(n, element, offset, column) for the thread's n-th element of the result.
  const auto for_results = [&](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kEach; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      const unsigned in_row = i & (shape.rows() - 1);
      const unsigned in_column = i >> shape.log_rows;
      const unsigned row = first_row + in_row;
      const unsigned column = first_column + in_column;
      if (row < rows && column < columns) {
        action(n, tile[in_row * tile_pitch + in_column], image + std::size_t{column} * rows + row,
               column);
      }
    }
  };
  // All loads begin before the first of their values is stored, which waits for it.
  T loaded[kEach] = {};
  T addends[kEach] = {};
#pragma unroll
  for (unsigned n = 0; n < kEach; ++n) {
    const unsigned i = n * kTileThreads + threadIdx.x;
    const unsigned row = first_row + (i >> shape.log_columns);
    const unsigned column = first_column + (i & (shape.columns() - 1));
    if (row < rows && column < columns) {
      loaded[n] = load(image_from + std::size_t{row} * pitch + column);
    }
  }
  if (a.z != nullptr) {
    for_results([&](unsigned n, T&, std::size_t to, unsigned) { addends[n] = load(a.z + to); });
  }
#pragma unroll
  for (unsigned n = 0; n < kEach; ++n) {
    const unsigned i = n * kTileThreads + threadIdx.x;
    tile[(i >> shape.log_columns) * tile_pitch + (i & (shape.columns() - 1))] = loaded[n];
  }
  __syncthreads();
  for_results([&](unsigned n, T element, std::size_t to, unsigned column) {
    const T bias = a.b != nullptr ? load(a.b + column) : T();
    a.y[to] = finish<kActivation>(a, element, addends[n], bias);
  });
}

/// Transpose images of `channels` planes to or from channels-last layout, whose pixels are `pitch`
/// apart. A tile has all of so many planes, whose elements lie together: these are read or written
/// in packs, which one by one they could not be, as a plane's size is any. An image is a multiple
/// of a pack, and pointers are aligned.
template <Activation kActivation, bool kToPlanes, typename T>
__global__ void __launch_bounds__(kTileThreads)
    transposing_planes_kernel(Arguments<T> a, const T* from, unsigned channels, unsigned plane,
                              unsigned pitch, unsigned log_planes, unsigned tiles) {
  constexpr unsigned kPack = kLanes<T>;
  constexpr unsigned kEach = kTileElements<T> / kTileThreads;
  __shared__ Vector<T> packs[kTileElements<T> / kPack];
  T* const elements = packs[0].lane;
  const unsigned first = (blockIdx.x % tiles) << log_planes;
  const unsigned count = min(1U << log_planes, channels - first);
  const std::size_t image = blockIdx.x / tiles;
  const std::size_t first_pack = (image * channels + first) * plane / kPack;
  const std::size_t first_element = image * plane * pitch + first;
  // Call action(n, element, offset) for the thread's elements, in the order of channels-last
  // layout.
  const auto for_elements = [&](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kEach; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      const unsigned channel = i & ((1U << log_planes) - 1);
      const unsigned pixel = i >> log_planes;
      if (channel < count && pixel < plane) {
        action(n, elements[channel * plane + pixel],
               first_element + std::size_t{pixel} * pitch + channel);
      }
    }
  };
  const auto for_packs = [&](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kEach / kPack; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      if (i < count * plane / kPack) {
        action(n, i);
      }
    }
  };
  if constexpr (kToPlanes) {
    // All loads begin before the first of their values is stored, which waits for it.
    T loaded[kEach] = {};
    for_elements([&](unsigned n, T&, std::size_t offset) { loaded[n] = load(from + offset); });
    Vector<T> addends[kEach / kPack] = {};
    if (a.z != nullptr) {
      for_packs([&](unsigned n, unsigned i) {
        addends[n] = load(reinterpret_cast<const Vector<T>*>(a.z) + first_pack + i);
      });
    }
    for_elements([&](unsigned n, T& element, std::size_t) { element = loaded[n]; });
    __syncthreads();
    for_packs([&](unsigned n, unsigned i) {
      Vector<T> result = packs[i];
      unsigned channel = i * kPack / plane;
      unsigned left = (channel + 1) * plane - i * kPack;
#pragma unroll
      for (unsigned lane = 0; lane < kPack; ++lane) {
        const T bias = a.b != nullptr ? load(a.b + first + channel) : T();
        result.lane[lane] = finish<kActivation>(a, result.lane[lane], addends[n].lane[lane], bias);
        if (--left == 0) {
          left = plane;
          ++channel;
        }
      }
      store(reinterpret_cast<Vector<T>*>(a.y) + first_pack + i, result);
    });
  } else {
    for_packs([&](unsigned, unsigned i) {
      packs[i] = load(reinterpret_cast<const Vector<T>*>(from) + first_pack + i);
    });
    __syncthreads();
    for_elements([&](unsigned, T element, std::size_t offset) { a.y[offset] = element; });
  }
}

/// Return the logarithm of the number of planes in a tile of transposing_planes_kernel, or none if
/// it does not take such images or would read and write less than 32 bytes of a pixel at once.
template <typename T>
std::optional<unsigned> log_planes_in_tile(const Arguments<T>& a, const void* from,
                                           std::int64_t channels, std::int64_t plane) {
  constexpr std::int64_t kLeastPlanes = 32 / sizeof(T);
  constexpr std::int64_t kMostPlanes = 128;
  const std::int64_t planes =
      std::min({kMostPlanes, std::int64_t{kTileElements<T>} / plane, channels});
  if (planes < kLeastPlanes || channels * plane % kLanes<T> != 0 || !is_aligned(from) ||
      !is_aligned(a.y) || !is_aligned(a.z)) {
    return std::nullopt;
  }
  return static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(planes))) - 1;
}

/// Return whether transposing_squares_kernel takes such matrices, and has work for at least a
/// quarter of its threads.
template <typename T>
bool has_squares(const Arguments<T>& a, const void* from, std::int64_t rows, std::int64_t columns,
                 std::int64_t pitch) {
  constexpr std::int64_t kPack = kLanes<T>;
  return rows % kPack == 0 && pitch % kPack == 0 && 2 * rows >= kRowGroups * kPack &&
         2 * columns >= kColumnGroups * kPack && is_aligned(from) && is_aligned(a.y) &&
         is_aligned(a.z);
}

/// Transpose images to channels-last layout or, if kToPlanes, from it. Its pixels are
/// `channel_pitch` apart.
template <Activation kActivation, bool kToPlanes, typename T>
void launch_transposing(const Arguments<T>& a, const void* from, std::int64_t images,
                        std::int64_t channels, std::int64_t channel_pitch, std::int64_t plane,
                        cudaStream_t stream) {
  const std::int64_t rows = kToPlanes ? plane : channels;
  const std::int64_t columns = kToPlanes ? channels : plane;
  const std::int64_t pitch = kToPlanes ? channel_pitch : plane;
  const auto tiles = [](std::int64_t count, std::int64_t side) {
    return static_cast<unsigned>((count + side - 1) / side);
  };
  const auto* const source = static_cast<const T*>(from);
  const auto height = static_cast<unsigned>(rows);
  const auto width = static_cast<unsigned>(columns);
  const auto row_pitch = static_cast<unsigned>(pitch);
  if (has_squares(a, from, rows, columns, pitch)) {
    const unsigned row_tiles = tiles(rows, kRowGroups * kLanes<T>);
    const unsigned column_tiles = tiles(columns, kColumnGroups * kLanes<T>);
    const unsigned blocks = tiles(images * row_tiles * column_tiles, kThreads / 32);
    transposing_squares_kernel<kActivation, T>
        <<<blocks, kThreads, 0, stream>>>(a, source, static_cast<unsigned>(images), height, width,
                                          row_pitch, row_tiles, column_tiles);
    return;
  }
  if (const std::optional<unsigned> log_planes = log_planes_in_tile(a, from, channels, plane)) {
    const unsigned channel_tiles = tiles(channels, std::int64_t{1} << *log_planes);
    const auto blocks = static_cast<unsigned>(images * channel_tiles);
    transposing_planes_kernel<kActivation, kToPlanes, T><<<blocks, kTileThreads, 0, stream>>>(
        a, source, static_cast<unsigned>(channels), static_cast<unsigned>(plane),
        static_cast<unsigned>(channel_pitch), *log_planes, channel_tiles);
    return;
  }
  const TileShape shape = tile_shape(kTileElements<T>, rows, columns);
  const unsigned row_tiles = tiles(rows, shape.rows());
  const unsigned column_tiles = tiles(columns, shape.columns());
  const auto blocks = static_cast<unsigned>(images * row_tiles * column_tiles);
  transposing_tiles_kernel<kActivation, T><<<blocks, kTileThreads, 0, stream>>>(
      a, source, shape, height, width, row_pitch, row_tiles, column_tiles);
}

/// Call function(Index()) for the type of indices of so many elements: division is faster in 32
/// bits.
template <typename Function>
void with_index(std::int64_t count, const Function& function) {
  if (count < std::int64_t{1} << 31) {
    function(std::uint32_t());
  } else {
    function(std::uint64_t());
  }
}

/// Call function(number, activation), which has the element type's T and an Activation as types.
template <typename Function>
void for_type_and_activation(ElementType type, Activation activation, const Function& function) {
  for_type(type, [&](auto number) {
    const auto call = [&](auto constant) { function(number, constant); };
    switch (activation) {
      case Activation::kIdentity:
        return call(Constant<Activation::kIdentity>());
      case Activation::kRelu:
        return call(Constant<Activation::kRelu>());
      case Activation::kRelu6:
        return call(Constant<Activation::kRelu6>());
      case Activation::kLeakyRelu:
        return call(Constant<Activation::kLeakyRelu>());
      case Activation::kGelu:
        return call(Constant<Activation::kGelu>());
      case Activation::kGeluTanh:
        return call(Constant<Activation::kGeluTanh>());
      case Activation::kSilu:
        return call(Constant<Activation::kSilu>());
      case Activation::kSigmoid:
        return call(Constant<Activation::kSigmoid>());
      case Activation::kTanh:
        return call(Constant<Activation::kTanh>());
    }
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_conv_epilogue(ElementType type, const ConvEpilogue& e, cudaStream_t stream) {
  if (e.count == 0) {
    return;
  }
  for_type_and_activation(type, e.activation, [&](auto number, auto activation) {
    using T = decltype(number);
    with_index(e.count,
               [&](auto index) { launch<activation.value, T, decltype(index)>(e, stream); });
  });
}

void launch_conv_epilogue_from_channels_last(ElementType type, const void* from, std::int64_t pitch,
                                             const ConvEpilogue& e, cudaStream_t stream) {
  if (e.count == 0) {
    return;
  }
  for_type_and_activation(type, e.activation, [&](auto number, auto activation) {
    using T = decltype(number);
    if (!e.channels_last) {
      launch_transposing<activation.value, /*kToPlanes=*/true>(
          arguments_of<T>(e), from, /*images=*/e.count / e.plane / e.channels, e.channels, pitch,
          e.plane, stream);
      return;
    }
    constexpr std::int64_t kElements = std::int64_t{kThreads} * kLanes<T>;
    const auto blocks = static_cast<unsigned>((e.count + kElements - 1) / kElements);
    with_index(e.count / e.channels * pitch, [&](auto index) {
      using Index = decltype(index);
      unpadding_kernel<activation.value, T, Index><<<blocks, kThreads, 0, stream>>>(
          arguments_of<T>(e), static_cast<const T*>(from), static_cast<Index>(e.count),
          static_cast<Index>(e.channels), static_cast<Index>(pitch));
    });
  });
}

void launch_to_channels_last(ElementType type, const void* from, void* to, std::int64_t batch,
                             std::int64_t channels, std::int64_t plane, cudaStream_t stream) {
  if (batch * channels * plane == 0) {
    return;
  }
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const Arguments<T> only_to{static_cast<T*>(to), nullptr, nullptr, 0, 0};
    launch_transposing<Activation::kIdentity, /*kToPlanes=*/false>(
        only_to, from, batch, channels, /*channel_pitch=*/channels, plane, stream);
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
