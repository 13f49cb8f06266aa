#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/relu_max_pool2d/relu_max_pool2d.h"
#include "kernels/relu_max_pool2d/windows.h"

// The choice of the backward pass's tiles.
namespace convtime::pool {

/// Bytes of shared memory that a block has without asking for more.
constexpr std::size_t kMaxShared = 48 * 1024;

/// Sizes of a tile.
struct TileSize {
  std::int64_t planes;
  std::int64_t rows;
  std::int64_t columns;
};

/// Return the size of that many equal parts, rounded up to whole strips, or halves of one.
inline std::int64_t part_of(std::int64_t size, std::int64_t parts) {
  const std::int64_t part = ceil_div(size, parts);
  const std::int64_t multiple = part > kTileStrip / 2 ? kTileStrip : kTileStrip / 2;
  return std::min(size, ceil_div(part, multiple) * multiple);
}

/// Return the size of the tiles of a tensor of planes with that height and width.
/// source_bytes(size) returns the shared memory that a tile needs, and `most` is what a tile should
/// need; one of two rows and columns must fit into kMaxShared. Tiles begin at even rows and
/// columns.
template <typename SourceBytes>
TileSize choose_tile(const TileSize& all, std::size_t most, const SourceBytes& source_bytes) {
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
  return *best;
}

/// Return the shape of a source for rows and columns of a tensor with that width.
inline SourceShape source_shape(const TileSize& size, std::int64_t width, std::int64_t item_bytes) {
  const std::int64_t vector = 16 / item_bytes;
  // The first element may be the last one of a vector.
  const auto vectors = [&](std::int64_t length) {
    return Division(ceil_div(length + vector - 1, vector));
  };
  if (size.columns == width) {
    return {1, static_cast<int>(width), vectors(size.planes * size.rows * width)};
  }
  // A row has the same position within 16 bytes as in memory, and shares no vector with the next.
  const std::int64_t pitch = size.columns + vector - 1;
  return {0, static_cast<int>(pitch + (width % vector - pitch % vector + vector) % vector),
          vectors(size.columns)};
}

/// Return the bytes of a source, in whole vectors.
inline std::size_t shared_bytes(const TileSize& size, std::int64_t width, std::int64_t item_bytes) {
  const SourceShape shape = source_shape(size, width, item_bytes);
  if (shape.is_contiguous != 0) {
    return static_cast<std::size_t>(16 * shape.vectors.divisor());
  }
  const std::int64_t vector = 16 / item_bytes;
  const std::int64_t elements = size.planes * size.rows * shape.pitch + vector;
  return static_cast<std::size_t>(16 * ceil_div(elements, vector));
}

/// A launch of tiles.
struct TiledLaunch {
  TileCall call;
  unsigned blocks;
  unsigned threads;
  std::size_t shared_bytes;
};

/// Return the number of threads of a block that idle least during so many tasks.
inline unsigned threads_for(std::int64_t tasks) {
  const std::int64_t rounds = ceil_div(tasks, kMaxTileThreads);
  return static_cast<unsigned>(
      std::max<std::int64_t>(128, ceil_div(ceil_div(tasks, rounds), 32) * 32));
}

/// Return the launch for a geometry whose planes 32-bit indices suffice for, and whose windows have
/// at most a few elements.
inline TiledLaunch tile_backward(const PoolGeometry& g, std::int64_t item_bytes) {
  // A tile writes more than it needs of shared memory.
  constexpr std::size_t kSharedBytes = 8 * 1024;
  const TileSize all{g.batch * g.channels, g.h.input, g.w.input};
  const auto outputs = [](const PoolAxis& axis, std::int64_t inputs) {
    const std::int64_t reach = (axis.kernel - std::int64_t{1}) * axis.dilation + 1;
    return inputs == axis.input ? axis.output
                                : std::min(axis.output, ceil_div(inputs + reach - 1, axis.stride));
  };
  const auto source_of = [&](const TileSize& size) {
    return TileSize{size.planes, outputs(g.h, size.rows), outputs(g.w, size.columns)};
  };
  const auto bytes_of = [&](const TileSize& size) {
    const TileSize source = source_of(size);
    return shared_bytes(source, g.w.output, item_bytes) + shared_bytes(source, g.w.output, 1);
  };
  const TileSize size = choose_tile(all, kSharedBytes, bytes_of);
  const TileSize source = source_of(size);
  const std::int64_t groups = ceil_div(size.columns, g.w.stride);
  const std::int64_t strips = ceil_div(size.rows, kTileStrip);
  const std::int64_t row_tiles = ceil_div(all.rows, size.rows);
  const std::int64_t column_tiles = ceil_div(all.columns, size.columns);
  TiledLaunch launch{};
  launch.call.tiling = {
      all.planes,          static_cast<int>(size.planes),  Division(size.rows),
      Division(row_tiles), static_cast<int>(size.columns), Division(column_tiles)};
  launch.call.h = {static_cast<int>(g.h.input), static_cast<int>(g.h.output)};
  launch.call.w = {static_cast<int>(g.w.input), static_cast<int>(g.w.output)};
  launch.call.gradients = source_shape(source, g.w.output, item_bytes);
  launch.call.won = source_shape(source, g.w.output, 1);
  launch.call.gradient_bytes = static_cast<int>(shared_bytes(source, g.w.output, item_bytes));
  launch.call.strips = Division(strips);
  launch.call.groups = Division(groups);
  launch.blocks =
      static_cast<unsigned>(ceil_div(all.planes, size.planes) * row_tiles * column_tiles);
  launch.threads = threads_for(size.planes * groups * strips);
  launch.shared_bytes = bytes_of(size);
  return launch;
}

}  // namespace convtime::pool
