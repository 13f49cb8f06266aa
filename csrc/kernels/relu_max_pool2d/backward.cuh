#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/relu_max_pool2d/pool_elements.cuh"

namespace convtime::pool {

// --- Groups: input elements that are in the same few windows

/// Windows without dilation. Input elements are in groups of as many as the stride, which begin at
/// its multiples.
struct Grouping {
  int first;    // window, relative to the group's number
  int windows;  // that have elements of the group

  constexpr explicit Grouping(const Axis& axis)
      : first(axis.padding / axis.stride -
              (axis.kernel - 1 - axis.padding % axis.stride) / axis.stride),
        windows((axis.stride - 1 + axis.padding) / axis.stride - first + 1) {}
};

/// The constants of a problem's groups.
template <Problem P>
struct Groups {
  static constexpr int kFirstRow = Grouping(P.h).first;
  static constexpr int kFirstColumn = Grouping(P.w).first;
  static constexpr int kRows = Grouping(P.h).windows;
  static constexpr int kColumns = Grouping(P.w).windows;
};

template <typename T>
struct Won {
  std::uint8_t winner;
  T gradient;
};

/// Return the gradient of the element at (row, column) in its group: the sum of the gradients of
/// the windows that it won, in their order. output(i, j) returns those of the group's windows.
template <typename T, Problem P, typename Output>
T gather(int row, int column, const Output& output) {
  Wide<T> sum = 0;
#pragma unroll
  for (int i = 0; i < Groups<P>::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Groups<P>::kColumns; ++j) {
      const int r = row + P.h.padding - (i + Groups<P>::kFirstRow) * P.h.stride;
      const int c = column + P.w.padding - (j + Groups<P>::kFirstColumn) * P.w.stride;
      if (0 <= r && r < P.h.kernel && 0 <= c && c < P.w.kernel) {
        const auto [winner, gradient] = output(i, j);
        sum += winner == r * P.w.kernel + c ? widen(gradient) : Wide<T>(0);
      }
    }
  }
  return narrow<T>(sum);
}

/// A window of a thread along an axis: the nearest one that exists.
struct Window {
  int output;
  bool exists;

  /// `number` is that of a window, relative to the thread's first group: one of `groups`, or of any
  /// number if that is zero.
  Window(const Axis& axis, int group, int number, int groups)
      : output(group + number), exists(true) {
    if (number < 0) {
      exists = output >= 0;
      output = max(0, output);
    }
    if (groups == 0 || groups - 1 + number >= axis.output) {
      exists = exists && output < axis.output;
      output = min(output, axis.output - 1);
    }
  }
};

/// For (N, C, H, W), and windows of K = 2 or 3 columns with a stride of 2 and a padding of K - 2: a
/// thread writes a pack of each row of its groups. For K = 3, the windows to the right come from
/// the neighboring lane.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) backward_planes(const Call call) {
  constexpr int N = P.pack;
  constexpr int kOutputs = N / 2;
  constexpr bool kHasRight = P.w.padding == 1;
  constexpr int kRows = P.rows + Groups<P>::kRows - 1;
  constexpr int kGroups =
      P.has_sizes() ? (tasks_of(Family::kBackwardPlanes, P).rows - 1) * P.rows + 1 : 0;
  using Gradients = Pack<T, kOutputs>;
  using Winners = Pack<Winner, kOutputs>;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int task = min(thread, call.threads - 1);  // all lanes take part in the shuffles
  const Position at = position_of<Family::kBackwardPlanes, P>(call, task);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  const int first_group = at.row * P.rows;

  const bool is_last = (at.column + 1) * N == w.input;
  const bool has_no_neighbour = threadIdx.x % 32 == 31 && !is_last;
  Gradients gradients[kRows];
  Winners won[kRows];
  Won<T> right[kRows];
  bool exists[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Window row(h, first_group, Groups<P>::kFirstRow + i, kGroups);
    exists[i] = row.exists;
    const std::int64_t offset =
        (std::int64_t{at.plane} * h.output + row.output) * w.output + at.column * kOutputs;
    const T* const from = static_cast<const T*>(call.from) + offset;
    const Winner* const winners = static_cast<const Winner*>(call.winners) + offset;
    gradients[i] = load(reinterpret_cast<const Gradients*>(from));
    won[i] = load(reinterpret_cast<const Winners*>(winners));
    if (kHasRight && has_no_neighbour) {
      right[i].winner = load(winners + kOutputs);
      right[i].gradient = load(from + kOutputs);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kHasRight) {
      const unsigned winner = shuffle<1>(unsigned{won[i].lane[0]});
      const T gradient = shuffle<1>(gradients[i].lane[0]);
      if (!has_no_neighbour) {
        right[i].winner = static_cast<Winner>(winner);
        right[i].gradient = gradient;
      }
    }
    if (!exists[i] || is_last) {
      right[i].winner = kDead<Winner>;
    }
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      won[i].lane[j] = exists[i] ? won[i].lane[j] : kDead<Winner>;
    }
  }

  if (thread >= call.threads) {
    return;
  }
#pragma unroll
  for (int row = 0; row < P.h.stride * P.rows; ++row) {
    Pack<T, N> sums;
#pragma unroll
    for (int column = 0; column < N; ++column) {
      sums.lane[column] = gather<T, P>(row % P.h.stride, column % 2, [&](int i, int j) -> Won<T> {
        const int p = row / P.h.stride + i;
        const int q = column / 2 + j;
        if (q == kOutputs) {
          return right[p];
        }
        return {won[p].lane[q], gradients[p].lane[q]};
      });
    }
    const int position = P.h.stride * first_group + row;
    if (position >= h.input) {
      break;
    }
    store(reinterpret_cast<Pack<T, N>*>(
              static_cast<T*>(call.to) +
              ((std::int64_t{at.plane} * h.input + position) * w.input + at.column * N)),
          sums);
  }
}

/// For (N, H, W, C): a thread has a pack of channels of a group.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) backward_pixels(const Call call) {
  constexpr int N = P.pack;
  constexpr int kRows = Groups<P>::kRows;
  constexpr int kColumns = Groups<P>::kColumns;
  constexpr int kGroupRows = P.has_sizes() ? tasks_of(Family::kBackwardPixels, P).rows : 0;
  constexpr int kGroupColumns = P.has_sizes() ? tasks_of(Family::kBackwardPixels, P).columns : 0;
  using Gradients = Pack<T, N>;
  using Winners = Pack<Winner, N>;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread >= call.threads) {
    return;
  }
  const Position at = position_of<Family::kBackwardPixels, P>(call, thread);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);

  Gradients gradients[kRows][kColumns];
  Winners won[kRows][kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const Window column(w, at.column, Groups<P>::kFirstColumn + j, kGroupColumns);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Window row(h, at.row, Groups<P>::kFirstRow + i, kGroupRows);
      const std::int64_t offset =
          ((std::int64_t{at.plane} * h.output + row.output) * w.output + column.output) *
              P.channels +
          at.channel;
      gradients[i][j] = load(static_cast<const Gradients*>(call.from) + offset);
      won[i][j] = load(static_cast<const Winners*>(call.winners) + offset);
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        won[i][j].lane[lane] = row.exists && column.exists ? won[i][j].lane[lane] : kDead<Winner>;
      }
    }
  }
#pragma unroll
  for (int row = 0; row < P.h.stride; ++row) {
#pragma unroll
    for (int column = 0; column < P.w.stride; ++column) {
      Gradients sums;
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        sums.lane[lane] = gather<T, P>(row, column, [&](int i, int j) -> Won<T> {
          return {won[i][j].lane[lane], gradients[i][j].lane[lane]};
        });
      }
      const int y = P.h.stride * at.row + row;
      const int x = P.w.stride * at.column + column;
      if (y < h.input && x < w.input) {
        store(
            static_cast<Gradients*>(call.to) +
                (((std::int64_t{at.plane} * h.input + y) * w.input + x) * P.channels + at.channel),
            sums);
      }
    }
  }
}

// --- Strips

/// Sums of the gradients of the windows that a pack of input elements won.
template <typename T, int N>
struct Sums {
  Wide<T> value[N] = {};

  template <typename Winner>
  void add(const Pack<T, N>& gradient, const Pack<Winner, N>& winner, int position,
           bool is_window = true) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool wins = is_window & (winner.lane[i] == static_cast<Winner>(position));
      value[i] += wins ? widen(gradient.lane[i]) : Wide<T>(0);
    }
  }
};

/// What the threads of backward_strips load.
template <typename T, Problem P>
struct BackwardStrip {
  static constexpr int kStepH = P.h.step();
  static constexpr int kStepW = P.w.step();
  static constexpr int kShiftH = P.h.shift();
  static constexpr int kShiftW = P.w.shift();
  /// Packs below each other that share the loads of their windows. More would need too many
  /// registers.
  static constexpr int kShared = P.pack == 1 && P.h.dilation == 1 ? P.rows : 1;
  /// Windows that these packs are in.
  static constexpr int kRows =
      kShared > 1 ? static_cast<int>(ceil_div(P.h.kernel + kShared - 1, P.h.stride))
                  : P.h.coverings();
  static constexpr int kColumns = P.w.coverings();
  static constexpr bool kLoadsRows = fits_registers(kColumns, P.pack * sizeof(T));
  /// Rows of windows that a thread loads before it compares the first of their winners: for many
  /// elements, as many as fit in 64 registers, and at most those of square windows with a stride of
  /// 1. With one, the compiler mixes loads and comparisons, which then wait for each other.
  static constexpr int kMostAtOnce =
      kShared > 1 ? std::clamp(32 / kColumns, 2, kColumns + kShared - 1) : 2;
  static constexpr int kParts = static_cast<int>(ceil_div(kRows, kMostAtOnce));
  static constexpr int kAtOnce = static_cast<int>(ceil_div(kRows, kParts));
};

/// Add up the gradients of the windows that packs of elements below each other won, in the order of
/// windows. Windows begin in the rows of outputs from `row` to before `end`, in steps, and have the
/// first pack as their element `element`.
template <typename T, Problem P, typename Winner, int R>
void gather_windows(const Pack<T, P.pack>* grad_output, const Pack<Winner, P.pack>* winners,
                    const Axis& w, int row, int end, int element, const Covering& columns,
                    Sums<T, P.pack> (&sums)[R]) {
  using Strip = BackwardStrip<T, P>;
  constexpr int N = P.pack;
  const auto offset_of = [&](int row) { return (row * w.output + columns.first) * P.channels; };
  // With R > 1, packs are in different rows of windows, which have no dilation.
  const auto for_packs_of = [&](int element, const auto& add) {
#pragma unroll
    for (int k = 0; k < R; ++k) {
      if (R == 1 || static_cast<unsigned>(element + k) < static_cast<unsigned>(P.h.kernel)) {
        add(sums[k], (element + k) * P.w.kernel + columns.element);
      }
    }
  };
  row = columns.first < columns.end ? row : end;
  if constexpr (Strip::kLoadsRows) {
    constexpr int C = Strip::kColumns;
    constexpr int kAtOnce = Strip::kAtOnce;
    bool is_window[C];
    std::int64_t offsets[C];
#pragma unroll
    for (int j = 0; j < C; ++j) {
      is_window[j] = columns.first + j * Strip::kStepW < columns.end;
      offsets[j] = is_window[j] ? j * Strip::kStepW * P.channels : 0;
    }
#pragma unroll 1
    for (int part = 0; part < Strip::kParts && row < end; ++part) {
      Pack<T, N> gradients[kAtOnce][C];
      Pack<Winner, N> won[kAtOnce][C];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row + i * Strip::kStepH < end) {
          const int offset = offset_of(row + i * Strip::kStepH);
#pragma unroll
          for (int j = 0; j < C; ++j) {
            gradients[i][j] = load(grad_output + offset + offsets[j]);
            won[i][j] = load(winners + offset + offsets[j]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row + i * Strip::kStepH < end) {
          for_packs_of(element - i * Strip::kShiftH, [&](Sums<T, N>& sum, int position) {
#pragma unroll
            for (int j = 0; j < C; ++j) {
              sum.add(gradients[i][j], won[i][j], position - j * Strip::kShiftW, is_window[j]);
            }
          });
        }
      }
      row += kAtOnce * Strip::kStepH;
      element -= kAtOnce * Strip::kShiftH;
    }
  } else {
    for (; row < end; row += Strip::kStepH, element -= Strip::kShiftH) {
      int offset = offset_of(row);
      int behind = 0;
#pragma unroll 4
      for (int column = columns.first; column < columns.end; column += Strip::kStepW) {
        const Pack<T, N> gradient = load(grad_output + offset);
        const Pack<Winner, N> won = load(winners + offset);
        for_packs_of(element, [&](Sums<T, N>& sum, int position) {
          sum.add(gradient, won, position - behind);
        });
        offset += Strip::kStepW * P.channels;
        behind += Strip::kShiftW;
      }
    }
  }
}

/// A thread has packs below each other.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) backward_strips(const Call call) {
  constexpr int N = P.pack;
  constexpr int R = BackwardStrip<T, P>::kShared;
  using Element = Pack<T, N>;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread >= call.threads) {
    return;
  }
  const Position at = position_of<Family::kBackwardStrips, P>(call, thread);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  const std::int64_t plane =
      std::int64_t{at.plane} * (h.output * w.output * P.channels) + at.channel;
  const auto* const grad_output = static_cast<const Element*>(call.from) + plane;
  const auto* const winners = static_cast<const Pack<Winner, N>*>(call.winners) + plane;
  auto* const grad_input = static_cast<Element*>(call.to) +
                           (std::int64_t{at.plane} * (h.input * w.input * P.channels) + at.channel);
  const Covering columns = w.covering(at.column);
  const int first_row = at.row * P.rows;
  const int end_row = min(first_row + P.rows, h.input);
#pragma unroll 1
  for (int row = first_row; row < end_row; row += R) {
    Sums<T, N> sums[R];
    if constexpr (R > 1) {
      const Range outputs = h.outputs({row, end_row});
      gather_windows<T, P>(grad_output, winners, w, outputs.first, outputs.end,
                           row - h.start(outputs.first), columns, sums);
    } else {
      const Covering rows = h.covering(row);
      gather_windows<T, P>(grad_output, winners, w, rows.first, rows.end, rows.element, columns,
                           sums);
    }
#pragma unroll
    for (int k = 0; k < R; ++k) {
      if (row + k < end_row) {
        Element result;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          result.lane[i] = narrow<T>(sums[k].value[i]);
        }
        store(grad_input + ((row + k) * w.input + at.column) * P.channels, result);
      }
    }
  }
}

// --- Tiles

// A tile is a range of rows and columns of the input's gradient. Its sources are the parts of the
// output's gradient and of the winners that a block loads for it into shared memory. Small planes
// share a block. Sizes are never constants: those of tiles depend on the number of planes.

struct Tile {
  std::int64_t plane;  // the first
  int planes;
  Range rows;
  Range columns;
};

/// Return the block's tile of planes with that height and width.
inline Tile tile_of_block(const Tiling& t, int height, int width) {
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
inline void copy_16_bytes(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

/// Wait for the copies of all threads.
inline void await_copies() {
#if __CUDA_ARCH__ >= 800
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
  Source(void* shared, const SourceShape& shape, const T* tensor, int height, int width,
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
  const T* row(int index) const { return elements_ + index * pitch_; }

 private:
  /// Copy those of the 16 bytes that are in the tensor.
  static void copy_vector(T* to, const T* from, const T* begin, const T* end) {
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

/// Store those elements of a row of a group that are in the tile.
template <typename T, int N>
void store_group(T* to, const Pack<T, N>& group, int columns) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(group) == 0;
  if (columns >= N && is_aligned) {
    *reinterpret_cast<Pack<T, N>*>(to) = group;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < columns) {
      to[i] = group.lane[i];
    }
  }
}

/// A thread has a strip of groups below each other, in kTileStrip rows.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kMaxTileThreads) backward_tiles(const TileCall call) {
  extern __shared__ uint4 shared[];
  constexpr int kStrideH = P.h.stride;
  constexpr int kStrideW = P.w.stride;
  constexpr int kRows = kTileStrip / kStrideH + Groups<P>::kRows - 1;
  constexpr int kColumns = Groups<P>::kColumns;
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  const Tile tile = tile_of_block(call.tiling, h.input, w.input);
  const bool has_whole_planes = call.tiling.row_tiles.divisor() == 1;
  const bool has_whole_rows = call.gradients.is_contiguous != 0;
  const Range rows = has_whole_planes ? Range{0, h.output} : h.outputs(tile.rows);
  const Range columns = has_whole_rows ? Range{0, w.output} : w.outputs(tile.columns);
  const Source<T> gradients(shared, call.gradients, static_cast<const T*>(call.grad_output),
                            h.output, w.output, call.tiling, tile, rows, columns);
  const Source<Winner> winners(reinterpret_cast<unsigned char*>(shared) + call.gradient_bytes,
                               call.won, static_cast<const Winner*>(call.winners), h.output,
                               w.output, call.tiling, tile, rows, columns);
  T* const grad_input = static_cast<T*>(call.grad_input) + tile.plane * h.input * w.input;
  await_copies();

  const int tasks = tile.planes * call.strips.divisor() * call.groups.divisor();
  for (int task = static_cast<int>(threadIdx.x); task < tasks;
       task += static_cast<int>(blockDim.x)) {
    int group = task;
    int strip = call.groups.split(group);
    const int plane = call.strips.split(strip);
    const int x = tile.columns.first + group * kStrideW;
    const int y = tile.rows.first + strip * kTileStrip;
    if (x >= tile.columns.end || y >= tile.rows.end) {
      continue;
    }
    const int first_row = quotient(y, kStrideH) + Groups<P>::kFirstRow;
    const int first_column = quotient(x, kStrideW) + Groups<P>::kFirstColumn;
    Won<T> won[kRows][kColumns];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i;
      const bool has_row = rows.first <= row && row < rows.end;
      const int at = plane * rows.size() + row - rows.first;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int column = first_column + j;
        won[i][j].winner = kDead<Winner>;
        won[i][j].gradient = T(0);
        if (has_row && columns.first <= column && column < columns.end) {
          won[i][j].winner = winners.row(at)[column - columns.first];
          won[i][j].gradient = gradients.row(at)[column - columns.first];
        }
      }
    }
    int offset = (plane * h.input + y) * w.input + x;
#pragma unroll
    for (int row = 0; row < kTileStrip; ++row) {
      if (y + row >= tile.rows.end) {
        break;
      }
      Pack<T, kStrideW> sums;
#pragma unroll
      for (int column = 0; column < kStrideW; ++column) {
        sums.lane[column] = gather<T, P>(row % kStrideH, column,
                                         [&](int i, int j) { return won[row / kStrideH + i][j]; });
      }
      store_group(grad_input + offset, sums, tile.columns.end - x);
      offset += w.input;
    }
  }
}

}  // namespace convtime::pool
