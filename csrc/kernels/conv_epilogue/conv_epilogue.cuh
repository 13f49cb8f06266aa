#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "kernels/activate.cuh"
#include "kernels/conv_epilogue/constants.h"
#include "kernels/elements.cuh"

namespace convtime::epilogue {

using namespace elements;

template <Constants k>
using Index = std::conditional_t<k.has_64_bits, std::uint64_t, std::uint32_t>;

template <Constants k>
Index<k> plane_of(const Arguments& a) {
  return static_cast<Index<k>>(k.plane != 0 ? k.plane : a.plane);
}

template <typename T>
const Vector<T>* as_packs(const T* from) {
  return reinterpret_cast<const Vector<T>*>(from);
}
template <typename T>
Vector<T>* as_packs(T* to) {
  return reinterpret_cast<Vector<T>*>(to);
}

/// Read memory that the kernel may also write, and before all_loaded() if called before it.
template <typename P>
P load_in_order(const P* from) {
  return from_word<P>(__ldca(as_words(from)));
}

/// Wait for no load until all of them have begun. The compiler would save registers by waiting for
/// some first, which takes longer where there are few threads.
inline void all_loaded() { __syncwarp(__activemask()); }

template <Constants k, typename T>
T finish(const Arguments& a, T y, T z, T bias) {
  if constexpr (!k.has_z && !k.has_b && k.activation == Activation::kIdentity) {
    return y;
  } else {
    constexpr bool kIsDouble = std::is_same_v<T, double>;
    Wide<T> x = widen(y);
    if constexpr (k.has_z) {
      x += static_cast<Wide<T>>(kIsDouble ? a.alpha : a.alpha32) * widen(z);
    }
    if constexpr (k.has_b) {
      x += widen(bias);
    }
    return narrow<T>(activate<k.activation>(
        x, static_cast<Wide<T>>(kIsDouble ? a.negative_slope : a.negative_slope32)));
  }
}

template <Constants k, typename T>
Vector<T> finish(const Arguments& a, const Vector<T>& y, const Vector<T>& z,
                 const Vector<T>& bias) {
  Vector<T> result;
#pragma unroll
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    result.lane[lane] = finish<k>(a, y.lane[lane], z.lane[lane], bias.lane[lane]);
  }
  return result;
}

/// Return the biases of a pack. `left` is how many elements its first channel still has; the
/// channels after it have `side`, and the first channel follows the last one.
template <Constants k, typename T>
Vector<T> biases(const T* b, Index<k> channel, Index<k> left, Index<k> side) {
  const auto next = [](Index<k> channel) {
    return channel + 1 == static_cast<Index<k>>(k.channels) ? 0 : channel + 1;
  };
  if constexpr (k.pack_bias == PackBias::kPack) {
    return load(as_packs(b + channel));
  } else {
    Vector<T> bias;
    bias.lane[0] = load(b + channel);
    const T second =
        k.pack_bias == PackBias::kTwo && left < kLanes<T> ? load(b + next(channel)) : bias.lane[0];
#pragma unroll
    for (int lane = 1; lane < kLanes<T>; ++lane) {
      if constexpr (k.pack_bias == PackBias::kAny) {
        bias.lane[lane] = bias.lane[lane - 1];
        if (--left == 0) {
          left = side;
          channel = next(channel);
          bias.lane[lane] = load(b + channel);
        }
      } else {
        bias.lane[lane] = lane < left ? bias.lane[0] : second;
      }
    }
    return bias;
  }
}

/// In memory, `plane` adjacent elements belong to one channel, the next ones to the next channel,
/// and so on, and after the last channel to the first one. An index also holds the number of
/// threads more than the count.
template <typename T, Constants k>
__global__ void __launch_bounds__(kThreads) epilogue_kernel(Arguments a) {
  constexpr int kPack = kLanes<T>;
  constexpr auto kChannels = static_cast<Index<k>>(k.channels);
  constexpr bool kOnlyPacks =
      k.in_packs && (k.pack_bias == PackBias::kOne || k.pack_bias == PackBias::kPack);
  T* const y = static_cast<T*>(a.y);
  const T* const z = static_cast<const T*>(a.z);
  const T* const b = static_cast<const T*>(a.b);
  const Index<k> thread = Index<k>{blockIdx.x} * kThreads + threadIdx.x;
  const Index<k> threads = Index<k>{gridDim.x} * kThreads;
  const Index<k> plane = plane_of<k>(a);
  const auto count = static_cast<Index<k>>(a.count);
  const Index<k> packs = k.in_packs ? count / kPack : 0;
  for (Index<k> i = thread; i < packs; i += threads) {
    const auto old = load_in_order(as_packs(y) + i);
    Vector<T> addend{};
    if constexpr (k.has_z) {
      addend = load(as_packs(z) + i);
    }
    Vector<T> bias{};
    if constexpr (k.has_b) {
      const Index<k> planes = i * kPack / plane;
      bias = biases<k>(b, planes % kChannels, plane - (i * kPack - planes * plane), plane);
    }
    store(as_packs(y) + i, finish<k>(a, old, addend, bias));
  }
  if constexpr (!kOnlyPacks) {
    for (Index<k> i = packs * kPack + thread; i < count; i += threads) {
      T addend{};
      if constexpr (k.has_z) {
        addend = load(z + i);
      }
      T bias{};
      if constexpr (k.has_b) {
        bias = load(b + i / plane % kChannels);
      }
      y[i] = finish<k>(a, y[i], addend, bias);
    }
  }
}

/// Channels are last in `from`, y and z; y and z have no gaps, and y is aligned. Threads have packs
/// of y, which they read in the largest parts that are aligned and within one pixel. An index also
/// holds the number of threads more than the count.
template <typename T, Constants k>
__global__ void __launch_bounds__(kThreads) unpadding_kernel(Arguments a) {
  constexpr int kPack = kLanes<T>;
  constexpr int kPart =
      k.in_packs ? static_cast<int>(std::gcd(std::gcd(k.channels, k.pitch), std::int64_t{kPack}))
                 : 1;
  constexpr auto kChannels = static_cast<Index<k>>(k.channels);
  using Part = Pack<T, kPart>;
  const T* const z = static_cast<const T*>(a.z);
  const T* const b = static_cast<const T*>(a.b);
  T* const y = static_cast<T*>(a.y);
  const Index<k> first = (Index<k>{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  const auto count = static_cast<Index<k>>(a.count);
  if (first >= count) {
    return;
  }
  const bool is_whole = kPart == kPack || first + kPack <= count;
  Index<k> channel = first % kChannels;
  const T* source =
      static_cast<const T*>(a.from) + first / kChannels * static_cast<Index<k>>(k.pitch) + channel;
  Vector<T> addend{};
  if (k.has_z && k.in_packs && is_whole) {
    addend = load(as_packs(z + first));
  }
  Vector<T> result{};
#pragma unroll
  for (int lane = 0; lane < kPack; lane += kPart) {
    if (is_whole || first + lane < count) {
      const Part part = load(reinterpret_cast<const Part*>(source));
      Part bias{};
      if constexpr (k.has_b && k.pack_bias == PackBias::kPack) {
        bias = load(reinterpret_cast<const Part*>(b + channel));
      }
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        if constexpr (k.has_b && k.pack_bias != PackBias::kPack) {
          bias.lane[i] = load(b + channel + i);
        }
        if (k.has_z && !(k.in_packs && is_whole)) {
          addend.lane[lane + i] = load(z + first + lane + i);
        }
        result.lane[lane + i] = finish<k>(a, part.lane[i], addend.lane[lane + i], bias.lane[i]);
      }
    }
    channel += kPart;
    source += kPart;
    if (channel == kChannels) {
      channel = 0;
      source += k.pitch - k.channels;
    }
  }
  if (is_whole) {
    store(as_packs(y + first), result);
    return;
  }
#pragma unroll
  for (int lane = 0; lane < kPack; ++lane) {
    if (first + lane < count) {
      y[first + lane] = result.lane[lane];
    }
  }
}

// --- Transposition: matrices of rows × columns, one for each image. Rows of what is read are
// `pitch` apart. The result, like z, has a row for each column, without gaps. Where there is a
// bias, columns are channels.

template <Constants k>
struct Matrix {
  unsigned rows;
  unsigned columns;
  Index<k> pitch;
};

template <Constants k>
Matrix<k> matrix_of(const Arguments& a) {
  constexpr auto kChannels = static_cast<unsigned>(k.channels);
  const Index<k> plane = plane_of<k>(a);
  const auto size = static_cast<unsigned>(plane);
  return k.to_planes ? Matrix<k>{size, kChannels, static_cast<Index<k>>(k.pitch)}
                     : Matrix<k>{kChannels, size, plane};
}

constexpr unsigned tiles(unsigned count, unsigned side) { return (count + side - 1) / side; }

template <typename T>
constexpr unsigned kTileElements = kTileBytes / sizeof(T);

/// A thread transposes a square in its registers, whose sides are packs. The number of rows and the
/// pitch are multiples of that. Pointers are aligned.
template <typename T, Constants k>
__global__ void __launch_bounds__(kThreads) transposing_squares_kernel(Arguments a) {
  constexpr unsigned kPack = kLanes<T>;
  const auto [rows, columns, pitch] = matrix_of<k>(a);
  const unsigned row_tiles = tiles(rows, kRowPacks * kPack);
  const unsigned column_tiles = tiles(columns, kColumnPacks * kPack);
  const unsigned tile = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const unsigned rest = tile / row_tiles;
  const unsigned row = (tile % row_tiles * kRowPacks + lane / kColumnPacks) * kPack;
  const unsigned column = (rest % column_tiles * kColumnPacks + lane % kColumnPacks) * kPack;
  const unsigned image = rest / column_tiles;
  if (row >= rows || column >= columns || image >= a.images) {
    return;
  }
  const Index<k> first_row = Index<k>{image} * rows;
  const T* const square = static_cast<const T*>(a.from) + (first_row + row) * pitch + column;
  const Index<k> to = first_row * columns + Index<k>{column} * rows + row;
  // Without channels in columns, these have the pitch.
  const unsigned count =
      !k.to_planes || k.channels % kPack == 0 ? kPack : std::min(kPack, columns - column);
  Vector<T> old[kPack];
  Vector<T> addend[kPack] = {};
  Vector<T> bias{};
#pragma unroll
  for (unsigned i = 0; i < kPack; ++i) {
    old[i] = load_in_order(as_packs(square + i * pitch));
  }
  if constexpr (k.has_b) {
    const T* const b = static_cast<const T*>(a.b) + column;
    if (k.pack_bias == PackBias::kPack && count == kPack) {
      bias = load(as_packs(b));
    } else {
#pragma unroll
      for (unsigned j = 0; j < kPack; ++j) {
        bias.lane[j] = j < count ? load(b + j) : T();
      }
    }
  }
  if constexpr (k.has_z) {
#pragma unroll
    for (unsigned j = 0; j < kPack; ++j) {
      if (j < count) {
        addend[j] = load_in_order(as_packs(static_cast<const T*>(a.z) + to + Index<k>{j} * rows));
      }
    }
  }
  all_loaded();
#pragma unroll
  for (unsigned j = 0; j < kPack; ++j) {
    if (j >= count) {
      return;
    }
    Vector<T> result;
#pragma unroll
    for (unsigned i = 0; i < kPack; ++i) {
      result.lane[i] = finish<k>(a, old[i].lane[j], addend[j].lane[i], bias.lane[j]);
    }
    store(as_packs(static_cast<T*>(a.y) + to + Index<k>{j} * rows), result);
  }
}

/// Transpose any matrices, by tiles of kTileElements. In shared memory, a column of padding lets
/// the threads of a warp that read a column of elements use different banks.
template <typename T, Constants k>
__global__ void __launch_bounds__(kTileThreads) transposing_tiles_kernel(Arguments a) {
  constexpr unsigned kEach = kTileElements<T> / kTileThreads;
  constexpr unsigned kLogRows = k.log_tile;
  constexpr unsigned kRows = 1U << kLogRows;
  constexpr unsigned kColumns = kTileElements<T> / kRows;
  constexpr unsigned kLogColumns = std::bit_width(kColumns) - 1;
  __shared__ T tile[kRows * (kColumns + 1)];
  const auto [rows, columns, pitch] = matrix_of<k>(a);
  const unsigned column_tiles = tiles(columns, kColumns);
  const unsigned row_tiles = tiles(rows, kRows);
  const unsigned first_column = blockIdx.x % column_tiles * kColumns;
  const unsigned rest = blockIdx.x / column_tiles;
  const unsigned first_row = rest % row_tiles * kRows;
  const Index<k> image_row = Index<k>{rest / row_tiles} * rows;
  const T* const from = static_cast<const T*>(a.from) + image_row * pitch;
  // Call action(n, element, offset, column) for the thread's n-th element of the result.
  const auto for_results = [&, rows = rows, columns = columns](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kEach; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      const unsigned in_row = i % kRows;
      const unsigned in_column = i >> kLogRows;
      const unsigned row = first_row + in_row;
      const unsigned column = first_column + in_column;
      if (row < rows && column < columns) {
        action(n, tile[in_row * (kColumns + 1) + in_column],
               image_row * columns + Index<k>{column} * rows + row, column);
      }
    }
  };
  T loaded[kEach] = {};
  T addends[kEach] = {};
#pragma unroll
  for (unsigned n = 0; n < kEach; ++n) {
    const unsigned i = n * kTileThreads + threadIdx.x;
    const unsigned row = first_row + (i >> kLogColumns);
    const unsigned column = first_column + i % kColumns;
    if (row < rows && column < columns) {
      loaded[n] = load_in_order(from + row * pitch + column);
    }
  }
  if constexpr (k.has_z) {
    for_results([&](unsigned n, T&, Index<k> to, unsigned) {
      addends[n] = load_in_order(static_cast<const T*>(a.z) + to);
    });
  }
  all_loaded();
#pragma unroll
  for (unsigned n = 0; n < kEach; ++n) {
    const unsigned i = n * kTileThreads + threadIdx.x;
    tile[(i >> kLogColumns) * (kColumns + 1) + i % kColumns] = loaded[n];
  }
  __syncthreads();
  for_results([&](unsigned n, T element, Index<k> to, unsigned column) {
    T bias{};
    if constexpr (k.has_b) {
      bias = load(static_cast<const T*>(a.b) + column);
    }
    static_cast<T*>(a.y)[to] = finish<k>(a, element, addends[n], bias);
  });
}

/// Transpose images of planes to or from channels-last layout. A tile has all of so many planes,
/// whose elements lie together: these are read or written in packs, which one by one they could not
/// be, as a plane's size is any. An image is a multiple of a pack, and pointers are aligned.
template <typename T, Constants k>
__global__ void __launch_bounds__(kTileThreads) transposing_planes_kernel(Arguments a) {
  constexpr unsigned kPack = kLanes<T>;
  constexpr unsigned kPlanes = 1U << k.log_tile;
  constexpr unsigned kElements =
      k.plane != 0 ? kPlanes * static_cast<unsigned>(k.plane) : kTileElements<T>;
  constexpr unsigned kEach = tiles(kElements, kTileThreads);
  constexpr unsigned kPacksEach = tiles(kElements / kPack, kTileThreads);
  constexpr auto kChannels = static_cast<unsigned>(k.channels);
  constexpr unsigned kTiles = tiles(kChannels, kPlanes);
  __shared__ Vector<T> packs[kElements / kPack];
  T* const elements = packs[0].lane;
  const auto plane = static_cast<unsigned>(plane_of<k>(a));
  const unsigned first = blockIdx.x % kTiles * kPlanes;
  const unsigned count = k.channels % kPlanes == 0 ? kPlanes : std::min(kPlanes, kChannels - first);
  const Index<k> image = blockIdx.x / kTiles;
  const Index<k> first_pack = (image * kChannels + first) * plane / kPack;
  const Index<k> first_element = image * plane * static_cast<Index<k>>(k.pitch) + first;
  // Call action(n, element, offset) for the thread's elements, in the order of channels-last
  // layout.
  const auto for_elements = [&](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kEach; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      const unsigned channel = i % kPlanes;
      const unsigned pixel = i / kPlanes;
      if (channel < count && pixel < plane) {
        action(n, elements[channel * plane + pixel],
               first_element + pixel * static_cast<Index<k>>(k.pitch) + channel);
      }
    }
  };
  const auto for_packs = [&](const auto& action) {
#pragma unroll
    for (unsigned n = 0; n < kPacksEach; ++n) {
      const unsigned i = n * kTileThreads + threadIdx.x;
      if (i < count * plane / kPack) {
        action(n, i);
      }
    }
  };
  if constexpr (k.to_planes) {
    T loaded[kEach] = {};
    for_elements([&](unsigned n, T&, Index<k> offset) {
      loaded[n] = load_in_order(static_cast<const T*>(a.from) + offset);
    });
    Vector<T> addends[kPacksEach] = {};
    if constexpr (k.has_z) {
      for_packs([&](unsigned n, unsigned i) {
        addends[n] = load_in_order(as_packs(static_cast<const T*>(a.z)) + first_pack + i);
      });
    }
    all_loaded();
    for_elements([&](unsigned n, T& element, Index<k>) { element = loaded[n]; });
    __syncthreads();
    for_packs([&](unsigned n, unsigned i) {
      Vector<T> bias{};
      if constexpr (k.has_b) {
        const unsigned channel = i * kPack / plane;
        bias = biases<k>(static_cast<const T*>(a.b), first + channel,
                         (channel + 1) * plane - i * kPack, plane);
      }
      store(as_packs(static_cast<T*>(a.y)) + first_pack + i,
            finish<k>(a, packs[i], addends[n], bias));
    });
  } else {
    for_packs([&](unsigned, unsigned i) {
      packs[i] = load(as_packs(static_cast<const T*>(a.from)) + first_pack + i);
    });
    __syncthreads();
    for_elements(
        [&](unsigned, T element, Index<k> offset) { static_cast<T*>(a.y)[offset] = element; });
  }
}

}  // namespace convtime::epilogue
