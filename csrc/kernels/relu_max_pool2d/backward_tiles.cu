#include "kernels/relu_max_pool2d/gather.cuh"
#include "kernels/relu_max_pool2d/tiles.cuh"

namespace convtime::pool {
namespace {

struct BackwardTiling {
  Tiling tiling;
  Windows h;
  Windows w;
  SourceShape gradients;
  SourceShape winners;
  std::size_t gradient_bytes;
  Division strips;  // of a tile's rows
  Division groups;  // of columns
};

/// The output's gradients and winners that a tile of the input's gradient needs.
template <typename T>
struct Outputs {
  Source<T> gradients;
  Source<std::uint8_t> winners;
  Range rows;
  Range columns;
};

/// Store those elements of a row of a group that are in the tile.
template <typename T, int S>
__device__ void store_group(T* to, const Pack<T, S>& group, int columns) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(group) == 0;
  if (columns >= S && is_aligned) {
    *reinterpret_cast<Pack<T, S>*>(to) = group;
    return;
  }
#pragma unroll
  for (int i = 0; i < S; ++i) {
    if (i < columns) {
      to[i] = group.lane[i];
    }
  }
}

/// A thread has a strip of groups below each other, in kStrip rows.
template <typename Group, typename T>
__device__ void gather_strips(const BackwardTiling& b, const Tile& tile, const Outputs<T>& outputs,
                              T* grad_input) {
  constexpr int S = Group::kStride;
  constexpr int kWindows = Group::kWindows;
  constexpr int kGroups = kStrip / S;
  constexpr int kRows = kGroups + kWindows - 1;
  const int tasks = tile.planes * b.strips.divisor() * b.groups.divisor();
  for (int task = static_cast<int>(threadIdx.x); task < tasks;
       task += static_cast<int>(blockDim.x)) {
    int group = task;
    int strip = b.groups.split(group);
    const int plane = b.strips.split(strip);
    const int w = tile.columns.first + group * S;
    const int h = tile.rows.first + strip * kStrip;
    if (w >= tile.columns.end || h >= tile.rows.end) {
      continue;
    }
    const int first_row = h / S + b.h.padding / S + Group::kFirst;
    const int first_column = w / S + b.w.padding / S + Group::kFirst;
    Won<T> won[kRows][kWindows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i;
      const bool has_row = outputs.rows.first <= row && row < outputs.rows.end;
      const int at = plane * outputs.rows.size() + row - outputs.rows.first;
#pragma unroll
      for (int j = 0; j < kWindows; ++j) {
        const int column = first_column + j;
        won[i][j] = {kDead<std::uint8_t>, T(0)};
        if (has_row && outputs.columns.first <= column && column < outputs.columns.end) {
          const int offset = column - outputs.columns.first;
          won[i][j] = {outputs.winners.row(at)[offset], outputs.gradients.row(at)[offset]};
        }
      }
    }
    int offset = (plane * b.h.input + h) * b.w.input + w;
#pragma unroll
    for (int row = 0; row < kStrip; ++row) {
      if (h + row >= tile.rows.end) {
        break;
      }
      Pack<T, S> sums;
#pragma unroll
      for (int column = 0; column < S; ++column) {
        sums.lane[column] =
            gather<Group, T>(row % S, column, [&](int i, int j) { return won[row / S + i][j]; });
      }
      store_group(grad_input + offset, sums, tile.columns.end - w);
      offset += b.w.input;
    }
  }
}

template <typename Group, typename T>
__global__ void __launch_bounds__(kMaxTileThreads)
    backward_kernel(const T* grad_output, const std::uint8_t* winners, T* grad_input,
                    const BackwardTiling b) {
  extern __shared__ uint4 shared[];
  const Tile tile = tile_of_block(b.tiling, b.h.input, b.w.input);
  const bool has_whole_planes = b.tiling.row_tiles.divisor() == 1;
  const bool has_whole_rows = b.gradients.is_contiguous;
  const Range rows = has_whole_planes ? Range{0, b.h.output} : b.h.outputs(tile.rows);
  const Range columns = has_whole_rows ? Range{0, b.w.output} : b.w.outputs(tile.columns);
  auto* const shared_winners = reinterpret_cast<unsigned char*>(shared) + b.gradient_bytes;
  const Outputs<T> outputs{
      {shared, b.gradients, grad_output, b.h.output, b.w.output, b.tiling, tile, rows, columns},
      {shared_winners, b.winners, winners, b.h.output, b.w.output, b.tiling, tile, rows, columns},
      rows,
      columns};
  grad_input += tile.plane * b.h.input * b.w.input;
  await_copies();
  gather_strips<Group>(b, tile, outputs, grad_input);
}

template <typename Group, typename T>
bool launch(const T* grad_output, const std::uint8_t* winners, T* grad_input, const PoolGeometry& g,
            cudaStream_t stream) {
  // A tile writes more than it needs of shared memory.
  constexpr std::size_t kSharedBytes = 8 * 1024;
  constexpr int S = Group::kStride;
  const TileSize all{g.batch * g.channels, g.h.input, g.w.input};
  const auto outputs = [](const PoolAxis& axis, std::int64_t inputs) {
    const std::int64_t reach = (axis.kernel - std::int64_t{1}) * axis.dilation + 1;
    return inputs == axis.input ? axis.output
                                : std::min(axis.output, ceil_div(inputs + reach - 1, axis.stride));
  };
  const auto source_size = [&](const TileSize& size) {
    return TileSize{size.planes, outputs(g.h, size.rows), outputs(g.w, size.columns)};
  };
  const auto gradients_of = [&](const TileSize& size) {
    return source_shape<T>(source_size(size), g.w.output);
  };
  const auto winners_of = [&](const TileSize& size) {
    return source_shape<std::uint8_t>(source_size(size), g.w.output);
  };
  const auto gradient_bytes_of = [&](const TileSize& size) {
    return shared_bytes<T>(gradients_of(size), size.planes * outputs(g.h, size.rows));
  };
  const auto bytes_of = [&](const TileSize& size) {
    return gradient_bytes_of(size) +
           shared_bytes<std::uint8_t>(winners_of(size), size.planes * outputs(g.h, size.rows));
  };
  const std::optional<TileSize> size = choose_tile(all, kSharedBytes, bytes_of);
  if (!size) {
    return false;
  }
  const std::int64_t groups = ceil_div(size->columns, S);
  const BackwardTiling b{make_tiling(*size, all),
                         Windows(g.h),
                         Windows(g.w),
                         gradients_of(*size),
                         winners_of(*size),
                         gradient_bytes_of(*size),
                         Division(ceil_div(size->rows, kStrip)),
                         Division(groups)};
  const std::int64_t blocks = count_blocks(b.tiling);
  if (blocks > kMax32) {
    return false;
  }
  const std::int64_t tasks = size->planes * groups * ceil_div(size->rows, kStrip);
  backward_kernel<Group>
      <<<static_cast<unsigned>(blocks), threads_for(tasks), bytes_of(*size), stream>>>(
          grad_output, winners, grad_input, b);
  return true;
}

}  // namespace

bool launch_backward_tiles(ElementType type, const void* grad_output, const void* winners,
                           void* grad_input, const PoolGeometry& g, cudaStream_t stream) {
  if (g.channels_last || !planes_fit_32_bits(g, 1)) {
    return false;
  }
  bool launched = false;
  for_type(type, [&](auto number) {
    using T = decltype(number);
    launched = with_grouped(g, [&](auto windows) {
      return launch<decltype(windows)>(static_cast<const T*>(grad_output),
                                       static_cast<const std::uint8_t*>(winners),
                                       static_cast<T*>(grad_input), g, stream);
    });
  });
  return launched;
}

}  // namespace convtime::pool
