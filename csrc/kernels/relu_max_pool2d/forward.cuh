#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/relu_max_pool2d/pool_elements.cuh"

// The winners' type is void if they are not kept.
namespace convtime::pool {

/// Blocks of a multiprocessor that leave each thread 96 registers, or up to 168 if it may need
/// more. The compiler would otherwise postpone loads in order to use fewer, so that they wait one
/// after the other.
template <typename T, typename Winner>
constexpr int kBlocks = !std::is_same_v<Winner, void> ? 3
                        : sizeof(T) == 8              ? 4
                                                      : 5;

/// Return the position of an element of a thread's windows. A position outside the input is clamped
/// to the nearest one inside, which is in the same window if there is no dilation: a repeated
/// element does not change a maximum. The thread's first output is among the first `outputs`.
inline int nearest(const Axis& axis, int start, int element, int outputs) {
  int position = start + element;
  position = axis.may_precede(element) ? max(0, position) : position;
  return axis.may_exceed(element, outputs) ? min(position, axis.input - 1) : position;
}

/// Return the element of a window that is nearest to another one and in the input.
template <Axis kAxis>
int nearest_element(const Axis& axis, int start, int element) {
  int position = start + element;
  if constexpr (kAxis.padding > 0) {
    position = max(0, position);
  }
  if constexpr (kAxis.may_exceed(kAxis.kernel - 1, kAxis.output)) {
    position = min(position, axis.input - 1);
  }
  return position - start;
}

/// Return the position of `best` in a window at (top, left) over value(row, column).
template <Problem P, typename T, typename Value>
std::uint8_t find_winner(T best, const Axis& h, int top, const Axis& w, int left,
                         const Value& value) {
  constexpr int kColumns = P.w.kernel;
  constexpr int kElements = P.h.kernel * kColumns;
  const auto number = widen(best);
  const bool is_nan = number != number;
  int position = 0;
  if (is_nan) {  // PyTorch takes the last NaN, but the first of equal values
    for (int i = 0; i < kElements; ++i) {
      const auto element = widen(value(i / kColumns, i % kColumns));
      position = element != element ? i : position;
    }
  } else {
#pragma unroll
    for (int i = kElements - 1; i >= 0; --i) {
      position = is_equal(value(i / kColumns, i % kColumns), best) ? i : position;
    }
  }
  const int row = nearest_element<P.h>(h, top, quotient(position, kColumns));
  const int column =
      nearest_element<P.w>(w, left, position - quotient(position, kColumns) * kColumns);
  const int winner = row * kColumns + column;
  return static_cast<std::uint8_t>(is_nan || number > 0 ? winner : winner | kDead<std::uint8_t>);
}

/// For (N, C, H, W), and windows of K = 2 or 3 columns with a stride of 2 and a padding of K - 2: a
/// thread loads a pack of each row, and has half as many outputs in each of its output rows. For
/// K = 3, the column to the left comes from the neighboring lane.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) forward_planes(const Call call) {
  constexpr int N = P.pack;
  constexpr int kPadding = P.w.padding;
  constexpr int kOutputs = N / 2;
  constexpr int kStride = P.h.stride;
  constexpr int kRows = kStride * (P.rows - 1) + P.h.kernel;
  constexpr int kLast = first_outputs(Family::kForwardPlanes, P).rows;
  using Row = Pack<T, N>;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int task = min(thread, call.threads - 1);  // all lanes take part in the shuffles
  const Position at = position_of<Family::kForwardPlanes, P>(call, task);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  const int first_output = at.row * P.rows;
  const int top = h.start(first_output);
  const T* const source = static_cast<const T*>(call.from) +
                          (std::int64_t{at.plane} * h.input * w.input + at.column * N);
  const auto source_row = [&](int i) {
    return source + std::int64_t{nearest(h, top, i, kLast)} * w.input;
  };

  Row rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = load_streaming(reinterpret_cast<const Row*>(source_row(i)));
  }
  T left[kRows];
  const bool has_no_neighbour = threadIdx.x % 32 == 0 && at.column > 0;
  if constexpr (kPadding == 1) {
    if (has_no_neighbour) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        left[i] = load(source_row(i) - 1);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = relu(rows[i]);
    if constexpr (kPadding == 1) {
      const T neighbours = shuffle<-1>(rows[i].lane[N - 1]);
      left[i] = has_no_neighbour ? max_nan(left[i], T(0))
                : at.column == 0 ? rows[i].lane[0]
                                 : neighbours;
    }
  }

  if (thread >= call.threads) {
    return;
  }
#pragma unroll
  for (int row = 0; row < P.rows; ++row) {
    const int first = kStride * row;
    Row columns = rows[first];
    T before = left[first];
#pragma unroll
    for (int i = 1; i < P.h.kernel; ++i) {
      columns = max_nan(columns, rows[first + i]);
      if constexpr (kPadding == 1) {
        before = max_nan(before, left[first + i]);
      }
    }
    Pack<T, kOutputs> best;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      best.lane[j] = max_nan(columns.lane[2 * j], columns.lane[2 * j + 1]);
      if constexpr (kPadding == 1) {
        best.lane[j] = max_nan(best.lane[j], j == 0 ? before : columns.lane[max(2 * j - 1, 0)]);
      }
    }
    const int oh = first_output + row;
    if (oh >= h.output) {
      break;
    }
    const std::int64_t offset =
        (std::int64_t{at.plane} * h.output + oh) * w.output + at.column * kOutputs;
    store(reinterpret_cast<Pack<T, kOutputs>*>(static_cast<T*>(call.to) + offset), best);
    if constexpr (!std::is_same_v<Winner, void>) {
      Pack<Winner, kOutputs> winner;
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        winner.lane[j] = find_winner<P>(
            best.lane[j], h, h.start(oh), w, at.column * N + 2 * j - kPadding, [&](int r, int c) {
              const int column = 2 * j + c - kPadding;
              return column < 0 ? left[first + r] : rows[first + r].lane[max(column, 0)];
            });
      }
      store(reinterpret_cast<Pack<Winner, kOutputs>*>(static_cast<Winner*>(call.winners) + offset),
            winner);
    }
  }
}

/// For (N, H, W, C), and windows without dilation: a thread has a pack of channels in a row of
/// outputs.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads, kBlocks<T, Winner>) forward_pixels(const Call call) {
  static_assert(P.rows == 1);
  constexpr int N = P.pack;
  constexpr int kRows = P.h.kernel;
  constexpr int kStride = P.w.stride;
  constexpr int kColumns = kStride * (P.columns - 1) + P.w.kernel;
  constexpr int kLastRow = first_outputs(Family::kForwardPixels, P).rows;
  constexpr int kLastColumn = first_outputs(Family::kForwardPixels, P).columns;
  using Pixel = Pack<T, N>;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread >= call.threads) {
    return;
  }
  const Position at = position_of<Family::kForwardPixels, P>(call, thread);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  const int first_column = at.column * P.columns;
  const int top = h.start(at.row);
  const int left = w.start(first_column);

  const Pixel* sources[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = std::int64_t{at.plane} * h.input + nearest(h, top, i, kLastRow);
    sources[i] = static_cast<const Pixel*>(call.from) + row * w.input * P.channels + at.channel;
  }
  Pixel pixels[kColumns][kRows];
  Pixel maxima[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const std::int64_t column = nearest(w, left, j, kLastColumn);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Pixel* const source = sources[i] + column * P.channels;
      // Where windows overlap, other threads hit in L1: streaming loads were slower.
      constexpr bool kIsReadOnce = P.h.kernel == P.h.stride && P.w.kernel == P.w.stride;
      pixels[j][i] = kIsReadOnce ? load_streaming(source) : load(source);
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pixels[j][i] = relu(pixels[j][i]);
      maxima[j] = i == 0 ? pixels[j][0] : max_nan(maxima[j], pixels[j][i]);
    }
    const int first = j - P.w.kernel + 1;
    if (first < 0 || first % kStride != 0) {
      continue;
    }
    Pixel best = max_nan(maxima[j - 1], maxima[j]);
#pragma unroll
    for (int i = 2; i < P.w.kernel; ++i) {
      best = max_nan(best, maxima[j - i]);
    }
    const int ow = first_column + first / kStride;
    if (at.row >= h.output || ow >= w.output) {
      continue;
    }
    const std::int64_t offset =
        ((std::int64_t{at.plane} * h.output + at.row) * w.output + ow) * P.channels + at.channel;
    store(static_cast<Pixel*>(call.to) + offset, best);
    if constexpr (!std::is_same_v<Winner, void>) {
      Pack<Winner, N> winner;
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        winner.lane[lane] =
            find_winner<P>(best.lane[lane], h, top, w, left + first,
                           [&](int r, int c) { return pixels[first + c][r].lane[lane]; });
      }
      store(static_cast<Pack<Winner, N>*>(call.winners) + offset, winner);
    }
  }
}

// --- Strips

/// What the threads of forward_strips load.
template <typename T, Problem P>
struct Strip {
  using Element = Pack<T, P.pack>;
  static constexpr int kWords = std::max(1, static_cast<int>(sizeof(Element)) / 4);
  static constexpr int kRows = P.h.kernel + (P.rows - 1) * P.h.shift();
  static constexpr int kApart = P.columns > 1 ? P.w.stride : 0;  // two windows beside each other
  static constexpr int kColumns = P.w.kernel + kApart;
  static constexpr bool kLoadsRows = fits_registers(kColumns, sizeof(Element));
  /// Rows that a thread loads before it compares them: as many as fit in 64 registers, and at most
  /// those of a square window; more are slower. With one, the compiler mixes loads and comparisons,
  /// which then wait for each other. They are parts of equal size, unrolled if they are few.
  static constexpr int kMostAtOnce =
      std::clamp(64 / kWords / P.w.kernel, 2, std::max(P.w.kernel, 2));
  static constexpr int kParts = static_cast<int>(ceil_div(kRows, kMostAtOnce));
  static constexpr int kAtOnce = static_cast<int>(ceil_div(kRows, kParts));
  static constexpr bool kUnrolls =
      kLoadsRows && std::int64_t{kRows} * kColumns * kWords <= 128 && !P.w.may_be_empty();
  static constexpr int kLastRow = first_outputs(Family::kForwardStrips, P).rows;
  static constexpr int kLastColumn = first_outputs(Family::kForwardStrips, P).columns;

  /// Load a row of windows. `first` is the address that the first element at the position `left`
  /// has, or would have. Elements outside the input are zero, which does not change the maximum of
  /// a ReLU.
  static void load_row(const Axis& w, const Element* first, int left, Element (&row)[kColumns]) {
    // A row's vectors begin at multiples of their size, so they are either inside or outside.
    constexpr int L = P.vector;
    constexpr int kBefore = (L - P.w.padding % L) % L;
#pragma unroll
    for (int j = -kBefore; j < kColumns; j += L) {
      const int position = left + j * P.w.dilation;
      const bool is_inside = (!w.may_precede(j) || position >= 0) &&
                             (!w.may_exceed(j, kLastColumn) || position < w.input);
      using Vector = Pack<T, P.pack * L>;
      const auto* const from =
          reinterpret_cast<const Vector*>(first + j * (P.w.dilation * P.channels));
      const Vector vector = load_if(is_inside, from);
      if constexpr (L == 1) {
        row[j] = vector;
      } else {
#pragma unroll
        for (int i = std::max(0, -j); i < L && j + i < kColumns; ++i) {
          row[j + i].lane[0] = vector.lane[i];
        }
      }
    }
  }
};

/// Set the best of a row of elements, for a window or for two beside each other.
template <typename T, Problem P, typename Best>
void pool_row(const Pack<T, P.pack> (&row)[Strip<T, P>::kColumns], int first_position,
              Best (&of_row)[P.columns]) {
  constexpr int kApart = Strip<T, P>::kApart;
  Best shared(false, first_position);
#pragma unroll
  for (int j = kApart; j < P.w.kernel; ++j) {
    shared.challenge(row[j], j);
  }
#pragma unroll
  for (int c = 0; c < P.columns; ++c) {
    of_row[c] = shared;
#pragma unroll
    for (int j = 0; j < kApart; ++j) {
      of_row[c].challenge(row[c * P.w.kernel + j], j);
    }
  }
}

/// A thread has a strip of packs of outputs below each other, whose windows have elements in the
/// same rows, or of pairs of outputs.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads, kBlocks<T, Winner>) forward_strips(const Call call) {
  using Strip = Strip<T, P>;
  using Element = typename Strip::Element;
  constexpr bool kWinners = !std::is_same_v<Winner, void>;
  using Best = std::conditional_t<kWinners, Leader<T, P.pack>, Maximum<T, P.pack>>;
  constexpr int R = P.rows;
  constexpr int C = P.columns;
  constexpr int kPhases = R > 1 ? P.h.step() : 1;
  constexpr int kShift = P.h.shift();
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread >= call.threads) {
    return;
  }
  const Position at = position_of<Family::kForwardStrips, P>(call, thread);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  int phase = at.row;
  const int first_output = split<kPhases>(phase) * R * kPhases + phase;
  const int first_column = at.column * C;
  const int top = h.start(first_output);
  const int left = w.start(first_column);
  // Offsets in a plane fit in 32 bits.
  const int pitch = w.input * P.channels;
  const Element* first = static_cast<const Element*>(call.from) +
                         std::int64_t{at.plane} * (h.input * pitch) + std::int64_t{top} * pitch +
                         (std::int64_t{left} * P.channels + at.channel);
  asm("" : "+l"(first));  // an address, and not an index that each load makes an address of

  constexpr bool kMayBeEmpty = P.h.may_be_empty() || P.w.may_be_empty();
  const Range columns = w.elements(left, P.w.kernel);
  Range rows = h.elements(top, Strip::kRows);
  if constexpr (P.w.may_be_empty()) {
    rows.end = columns.size() == 0 ? rows.first : rows.end;
  }
  Best best[R][C];
#pragma unroll
  for (int k = 0; k < R; ++k) {
    const int first_row = max(rows.first - k * kShift, 0);
    const bool is_empty = kMayBeEmpty && min(rows.end - k * kShift, P.h.kernel) <= first_row;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      // The maximum of zeros is the ReLU.
      best[k][c] = Best(is_empty, first_row * P.w.kernel + columns.first);
    }
  }
  // The largest of a row challenges the best of each window that has this row.
  const auto challenge_all = [&](const Best(&of_row)[C], int i) {
#pragma unroll
    for (int k = 0; k < R; ++k) {
      const int element = i - k * kShift;
      if (R == 1 || static_cast<unsigned>(element) < static_cast<unsigned>(P.h.kernel)) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          best[k][c].challenge(of_row[c], element * P.w.kernel);
        }
      }
    }
  };
  const auto row_at = [&](int i) { return first + std::int64_t{i} * (P.h.dilation * pitch); };
  if constexpr (Strip::kLoadsRows) {
    const int begin = Strip::kUnrolls ? 0 : rows.first;
    const int end = Strip::kUnrolls ? Strip::kRows : rows.end;
    const auto has_row = [&](int i) {
      if constexpr (!Strip::kUnrolls) {
        return i < end;
      }
      const int position = top + i * P.h.dilation;
      return i < end && (!h.may_precede(i) || position >= 0) &&
             (!h.may_exceed(i, Strip::kLastRow) || position < h.input);
    };
    constexpr int kUnroll = Strip::kUnrolls ? Strip::kParts : 1;
#pragma unroll kUnroll
    for (int i = begin; i < end; i += Strip::kAtOnce) {
      Element elements[Strip::kAtOnce][Strip::kColumns];
#pragma unroll
      for (int r = 0; r < Strip::kAtOnce; ++r) {
        if (has_row(i + r)) {
          Strip::load_row(w, row_at(i + r), left, elements[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < Strip::kAtOnce; ++r) {
        if (has_row(i + r)) {
          Best of_row[C];
          pool_row<T, P>(elements[r], columns.first, of_row);
          challenge_all(of_row, i + r);
        }
      }
    }
  } else {
    for (int i = rows.first; i < rows.end; ++i) {
      const Element* const row = row_at(i);
      Best of_row[1] = {Best(false, columns.first)};
#pragma unroll 4
      for (int j = columns.first; j < columns.end; ++j) {
        of_row[0].challenge(load(row + std::int64_t{j} * (P.w.dilation * P.channels)), j);
      }
      challenge_all(of_row, i);
    }
  }

  auto* const output = static_cast<Element*>(call.to);
  const std::int64_t plane = std::int64_t{at.plane} * (h.output * w.output * P.channels);
  int row = first_output;
#pragma unroll
  for (int k = 0; k < R; ++k) {
    if (row < h.output) {
      const std::int64_t offset =
          R * C == 1 ? thread : plane + ((row * w.output + first_column) * P.channels + at.channel);
      store(output + offset, best[k][0].values());
      if constexpr (kWinners) {
        store(static_cast<Pack<Winner, P.pack>*>(call.winners) + offset,
              best[k][0].template winners<Winner>());
      }
      if (C > 1 && first_column + 1 < w.output) {
        store(output + offset + 1, best[k][C - 1].values());
      }
    }
    row += kPhases;
  }
}

/// Write each output's index of its winner within the input plane.
template <typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) indices(const Call call) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread >= call.threads) {
    return;
  }
  const Position at = position_of<Family::kIndices, P>(call, thread);
  const Axis h = axis_of<P.h>(call.h);
  const Axis w = axis_of<P.w>(call.w);
  int column = static_cast<int>(static_cast<const Winner*>(call.winners)[thread] &
                                static_cast<Winner>(~kDead<Winner>));
  const int row = split<P.w.kernel>(column);
  static_cast<std::int64_t*>(call.to)[thread] =
      std::int64_t{h.start(at.row) + row * P.h.dilation} * w.input + w.start(at.column) +
      column * P.w.dilation;
}

}  // namespace convtime::pool
