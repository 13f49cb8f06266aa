#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/relu_max_pool2d/tiles.h"
#include "kernels/relu_max_pool2d/windows.cuh"

// A tile is a range of rows and columns of the tensor that a kernel writes. Its source is the part
// of each plane that a block loads for it. Small planes share a block.
namespace convtime::pool {

constexpr int kMaxTileThreads = 256;

/// How a source is stored in shared memory.
struct SourceShape {
  bool is_contiguous;  // in memory: whole rows, of one or more planes
  int pitch;           // from one row to the next
  Division vectors;    // of 16 bytes, per row, or in all if contiguous
};

/// How a tensor is divided among blocks.
struct Tiling {
  std::int64_t planes;
  int planes_per_block;
  Division rows;  // of a tile
  Division row_tiles;
  int columns;  // of a tile
  Division column_tiles;
};

struct Tile {
  std::int64_t plane;  // the first
  int planes;
  Range rows;
  Range columns;
};

/// Return the block's tile of planes with that height and width.
__device__ inline Tile tile_of_block(const Tiling& t, int height, int width) {
  int column = static_cast<int>(blockIdx.x);
  int row = t.column_tiles.split(column);
  const int group = t.row_tiles.split(row);
  const std::int64_t plane = std::int64_t{group} * t.planes_per_block;
  row *= t.rows.divisor();
  column *= t.columns;
  return {plane,
          static_cast<int>(min(std::int64_t{t.planes_per_block}, t.planes - plane)),
          {row, min(row + t.rows.divisor(), height)},
          {column, min(column + t.columns, width)}};
}

/// Copy 16 bytes to shared memory, in the background if the GPU supports that.
__device__ inline void copy_16_bytes(void* to, const void* from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

/// Wait for the copies of all threads.
__device__ inline void await_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();
}

/// A tile's source in shared memory. Elements keep their position within 16 bytes, so that rows of
/// any length are copied as vectors.
template <typename T>
class Source {
 public:
  /// Start to copy rows and columns of each of the tile's planes, which have height × width
  /// elements. Rows must be whole if the shape is contiguous, and planes if there is more than one.
  __device__ Source(void* shared, const SourceShape& shape, const T* tensor, int height, int width,
                    const Tiling& t, const Tile& tile, Range rows, Range columns)
      : pitch_(shape.pitch) {
    const std::int64_t plane_size = std::int64_t{height} * width;
    const T* const from =
        tensor + tile.plane * plane_size + std::int64_t{rows.first} * width + columns.first;
    auto* const to = static_cast<T*>(shared);
    const int shift =
        static_cast<int>(reinterpret_cast<std::uintptr_t>(from) / sizeof(T) % kLanes<T>);
    const T* const end = tensor + t.planes * plane_size;
    const int all_rows = tile.planes * rows.size();
    const int parts = shape.is_contiguous ? 1 : all_rows;
    const int length = (shape.is_contiguous ? all_rows : 1) * columns.size();
    for (int i = static_cast<int>(threadIdx.x); i < parts * shape.vectors.divisor();
         i += static_cast<int>(blockDim.x)) {
      int vector = i;
      const int part = shape.vectors.split(vector);
      const int start = shift + part * pitch_;
      const int offset = vector * kLanes<T> - start % kLanes<T>;
      if (offset < length) {
        copy_vector(to + start + offset, from + part * width + offset, tensor, end);
      }
    }
    elements_ = to + shift;
  }

  /// Return a row of the copy.
  __device__ const T* row(int index) const { return elements_ + index * pitch_; }

 private:
  /// Copy those of the 16 bytes that are in the tensor.
  __device__ static void copy_vector(T* to, const T* from, const T* begin, const T* end) {
    if (from >= begin && from + kLanes<T> <= end) {
      copy_16_bytes(to, from);
      return;
    }
    for (int i = 0; i < kLanes<T>; ++i) {
      if (from + i >= begin && from + i < end) {
        to[i] = from[i];
      }
    }
  }

  const T* elements_;
  int pitch_;
};

// --- Choice of tiles, on the host
// ----------------------------------------------------------------------

/// Bytes of shared memory that a block has without asking for more.
constexpr std::size_t kMaxShared = 48 * 1024;
/// Rows of outputs that a thread computes at once.
constexpr int kStrip = 4;

/// Sizes of a tile.
struct TileSize {
  std::int64_t planes;
  std::int64_t rows;
  std::int64_t columns;
};

/// Return the size of that many equal parts, rounded up to whole strips, or halves of one.
inline std::int64_t part_of(std::int64_t size, std::int64_t parts) {
  const std::int64_t part = ceil_div(size, parts);
  const std::int64_t multiple = part > kStrip / 2 ? kStrip : kStrip / 2;
  return std::min(size, ceil_div(part, multiple) * multiple);
}

/// Return the size of the tiles of a tensor of planes with that height and width, if a block can
/// load one. source_bytes(size) returns the shared memory that a tile needs, and `most` is what a
/// tile should need. Tiles begin at even rows and columns.
template <typename SourceBytes>
std::optional<TileSize> choose_tile(const TileSize& all, std::size_t most,
                                    const SourceBytes& source_bytes) {
  // Small blocks overlap their loads and their computation, and leave no multiprocessor idle.
  constexpr std::size_t kLeast = 4 * 1024;
  constexpr std::size_t kBlocks = 512;
  const std::size_t plane = source_bytes(TileSize{1, all.rows, all.columns});
  const std::size_t usual =
      std::clamp(plane * static_cast<std::size_t>(all.planes) / kBlocks, kLeast, most);
  if (plane <= usual) {
    const auto planes = static_cast<std::int64_t>(usual / plane);
    return TileSize{std::min(all.planes, planes), all.rows, all.columns};
  }
  struct Limit {
    std::size_t bytes;
    double loads;  // of the source, on average
  };
  std::optional<TileSize> best;
  for (const Limit& limit : {Limit{usual, 1.2}, Limit{2 * most, 1.4}, Limit{kMaxShared, 1e9}}) {
    double least = limit.loads;
    for (std::int64_t bands = 1; bands < 2 * all.rows; bands *= 2) {
      const std::int64_t rows = part_of(all.rows, bands);
      std::int64_t columns = all.columns;
      while (columns > 2 && source_bytes(TileSize{1, rows, columns}) > limit.bytes) {
        columns = ceil_div(columns, 4) * 2;
      }
      const std::size_t bytes = source_bytes(TileSize{1, rows, columns});
      const double loads = static_cast<double>(bytes) * ceil_div(all.rows, rows) *
                           ceil_div(all.columns, columns) / static_cast<double>(plane);
      if (bytes <= limit.bytes && loads < least) {
        least = loads;
        best = TileSize{1, rows, columns};
      }
    }
    if (best) {
      break;
    }
  }
  return best;
}

/// Return the source's shape for rows and columns of a tensor with that width.
template <typename T>
SourceShape source_shape(const TileSize& size, std::int64_t width) {
  constexpr std::int64_t kVector = kLanes<T>;
  // The first element may be the last one of a vector.
  const auto vectors = [](std::int64_t length) {
    return Division(ceil_div(length + kVector - 1, kVector));
  };
  if (size.columns == width) {
    return {true, static_cast<int>(width), vectors(size.planes * size.rows * width)};
  }
  // A row has the same position within 16 bytes as in memory, and shares no vector with the next.
  const std::int64_t pitch = size.columns + kVector - 1;
  return {false, static_cast<int>(pitch + (width % kVector - pitch % kVector + kVector) % kVector),
          vectors(size.columns)};
}

/// Return the bytes of a source with that many rows in all, in whole vectors.
template <typename T>
std::size_t shared_bytes(const SourceShape& shape, std::int64_t rows) {
  if (shape.is_contiguous) {
    return static_cast<std::size_t>(16 * shape.vectors.divisor());
  }
  const std::int64_t elements = rows * shape.pitch + kLanes<T>;
  return static_cast<std::size_t>(16 * ceil_div(elements, kLanes<T>));
}

/// Return how tiles of that size divide a tensor.
inline Tiling make_tiling(const TileSize& size, const TileSize& all) {
  return {all.planes,
          static_cast<int>(size.planes),
          Division(size.rows),
          Division(ceil_div(all.rows, size.rows)),
          static_cast<int>(size.columns),
          Division(ceil_div(all.columns, size.columns))};
}

/// Return the number of blocks.
inline std::int64_t count_blocks(const Tiling& t) {
  return ceil_div(t.planes, t.planes_per_block) * t.row_tiles.divisor() * t.column_tiles.divisor();
}

/// Return the number of threads of a block that idle least during so many tasks.
inline unsigned threads_for(std::int64_t tasks) {
  const std::int64_t rounds = ceil_div(tasks, kMaxTileThreads);
  return static_cast<unsigned>(
      std::max<std::int64_t>(128, ceil_div(ceil_div(tasks, rounds), 32) * 32));
}

}  // namespace convtime::pool
