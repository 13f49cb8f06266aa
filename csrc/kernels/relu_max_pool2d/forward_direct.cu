#include <cmath>
#include <type_traits>

#include "kernels/relu_max_pool2d/direct.cuh"

namespace convtime::pool {
namespace {

/// Kernels are compiled for windows of up to so many columns, and for any number.
constexpr int kMaxColumns = 7;

/// Rows of W elements that a thread loads before it compares them: as many as fit in 64 registers,
/// and at most those of a square window; more are slower, also for strips. With one, the compiler
/// mixes loads and comparisons, which then wait for each other.
template <typename T, int N, int W>
constexpr int kRowsAtOnce =
    std::clamp(64 / (W * std::max(1, N* static_cast<int>(sizeof(T)) / 4)), 2, std::max(W, 2));

/// Outputs of a strip that shares the loads of its windows. Where that is faster was fitted on the
/// 240 forward passes of benchmarks/pool.py, on an H100 and an H200: see prefers_strips.
constexpr int kStrip = 4;
/// Threads, if they have packs: fewer leave multiprocessors idle. Fitted on the same passes.
constexpr std::int64_t kLeastPacks = 1 << 14;

/// The largest values so far, without their positions.
template <typename T, int N>
struct Maximum {
  Pack<T, N> best;

  Maximum() = default;
  __device__ Maximum(float least, int) : best(filled<T, N>(least)) {}
  __device__ void challenge(const Pack<T, N>& other, int) { best = max_nan(best, other); }
  __device__ void challenge(const Maximum& other, int) { best = max_nan(best, other.best); }
  __device__ Pack<T, N> values() const { return best; }
};

/// How threads share the outputs of a column: a strip has outputs whose windows have elements in
/// the same rows.
struct Strips {
  Division phases;  // outputs from one of a strip to the next
  int shift;        // of the windows of two such outputs, in elements
};

/// Loads one row of windows with W columns, or of any number if W is zero. Channels are last, or
/// dilation is any.
template <int W, typename T, int N>
class Row {
 public:
  __device__ Row(const Windows& w, int channels, int left, Range columns)
      : columns_(columns),
        first_(static_cast<unsigned>(left) * channels),
        step_(static_cast<unsigned>(w.dilation.divisor()) * channels) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      offsets_[j] = bytes(position(j));
    }
  }
  /// A position outside the input is clamped to the window's nearest one inside: a repeated element
  /// does not change a maximum.
  __device__ int position(int j) const { return max(columns_.first, min(j, columns_.end - 1)); }
  __device__ Pack<T, N> at(const Pack<T, N>* row, int j) const {
    const std::int64_t offset = W > 0 ? offsets_[j] : bytes(j);
    return load(reinterpret_cast<const Pack<T, N>*>(reinterpret_cast<const char*>(row) + offset));
  }

 private:
  /// Return an element's offset in bytes: the compiler then adds it to addresses in fewer
  /// instructions. Unsigned numbers may wrap on the way.
  __device__ std::int64_t bytes(int j) const {
    const auto offset = static_cast<int>(first_ + j * step_);
    return std::int64_t{offset} * static_cast<int>(sizeof(Pack<T, N>));
  }

  Range columns_;
  unsigned first_;
  unsigned step_;
  std::int64_t offsets_[std::max(W, 1)];
};

/// How the elements of a row are read: adjacent ones differ in a constant offset. Pairs are those
/// of two windows beside each other, which are so many columns apart, and share all other columns.
enum class Columns : std::int8_t { kAny, kAdjacent, kPairs1, kPairs2 };

/// From a thread's first window to the one beside it; 0 if it has none.
__host__ __device__ constexpr int apart(Columns columns) {
  return columns == Columns::kPairs1 ? 1 : columns == Columns::kPairs2 ? 2 : 0;
}

/// The same for adjacent elements, of a window or two.
template <int W, int kApart, typename T>
class AdjacentRow {
 public:
  __device__ AdjacentRow(const Windows&, int, int left, Range columns)
      : columns_(columns), left_(left) {}
  __device__ int position(int j) const { return j; }
  /// Zero outside the input: it does not change the maximum of a ReLU.
  __device__ Pack<T, 1> at(const Pack<T, 1>* row, int j) const {
    const bool is_inside = columns_.first <= j && j < columns_.end;
    return is_inside ? load(row + left_ + j) : Pack<T, 1>{T(0)};
  }

 private:
  Range columns_;
  int left_;
};

/// The best of a row of elements, for a window of W columns, or for two.
template <int W, int kApart, int C, typename InRow, typename Element, typename Best>
__device__ void pool_row(const InRow& in_row, const Element& elements, int first_position,
                         Best (&of_row)[C]) {
  Best shared(0.0f, first_position);
#pragma unroll
  for (int j = kApart; j < W; ++j) {
    shared.challenge(elements[j], in_row.position(j));
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    of_row[c] = shared;
#pragma unroll
    for (int j = 0; j < kApart; ++j) {
      of_row[c].challenge(elements[c * W + j], in_row.position(c * W + j));
    }
  }
}

/// Compare the elements of R windows, of which the first is at (top, left) and the others are
/// `shift` elements below each other, by rows. `rows` are those of all windows, counted from the
/// first one's.
template <int W, int R, int C, Columns kColumns, typename T, int N, typename Best>
__device__ void pool_windows(const Pack<T, N>* source, const Windows& h, const Windows& w,
                             int channels, int top, int left, Range rows, Range columns, int shift,
                             Best (&best)[R][C]) {
  using InRow = std::conditional_t<kColumns == Columns::kAny, Row<W, T, N>,
                                   AdjacentRow<W, apart(kColumns), T>>;
  const InRow in_row(w, channels, left, columns);
  const auto row_of = [&](int i) {
    const int row = top + i * h.dilation.divisor();
    return source + row * (w.input * channels);
  };
  // The largest of a row challenges the best of each window that has this row.
  const auto challenge_all = [&](const Best(&of_row)[C], int i) {
#pragma unroll
    for (int k = 0; k < R; ++k) {
      const int element = i - k * shift;
      if (R == 1 || static_cast<unsigned>(element) < static_cast<unsigned>(h.kernel)) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          best[k][c].challenge(of_row[c], element * w.kernel);
        }
      }
    }
  };
  if constexpr (W == 0) {
    for (int i = rows.first; i < rows.end; ++i) {
      const Pack<T, N>* const row = row_of(i);
      Best of_row[1] = {Best(0.0f, columns.first)};
#pragma unroll 4
      for (int j = columns.first; j < columns.end; ++j) {
        of_row[0].challenge(in_row.at(row, j), j);
      }
      challenge_all(of_row, i);
    }
  } else {
    constexpr int kRows = kRowsAtOnce<T, N, W>;
#pragma unroll 1
    for (int i = rows.first; i < rows.end; i += kRows) {
      constexpr int kApart = apart(kColumns);
      Pack<T, N> elements[kRows][W + kApart];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
          const Pack<T, N>* const row = row_of(i + r);
#pragma unroll
          for (int j = 0; j < W + kApart; ++j) {
            elements[r][j] = in_row.at(row, j);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
          Best of_row[C];
          pool_row<W, kApart>(in_row, elements[r], columns.first, of_row);
          challenge_all(of_row, i + r);
        }
      }
    }
  }
}

/// A thread computes a strip of R packs of outputs, or of R pairs of outputs. Windows have W
/// columns, or any number if W is zero.
template <typename T, int N, int W, int R, Columns kColumns, bool kWinners, typename Winner>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const Pack<T, N>* input, Pack<T, N>* output, Pack<Winner, N>* winners,
                   const Packs packs, const Windows h, const Windows w, const Strips strips) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= packs.count) {
    return;
  }
  using Best = std::conditional_t<kWinners, Leader<T, N>, Maximum<T, N>>;
  constexpr int C = apart(kColumns) > 0 ? 2 : 1;
  const PackPosition at = position_of(packs, index);
  const int channels = kColumns == Columns::kAny ? packs.channels.divisor() : 1;
  // Offsets in a plane fit in 32 bits.
  const Pack<T, N>* source =
      input + std::int64_t{at.plane} * (h.input * w.input * channels) + at.channel;
  asm("" : "+l"(source));  // an address, and not an index that each load makes an address of
  int first_output = at.row;
  if constexpr (R > 1) {
    int phase = at.row;
    first_output = strips.phases.split(phase) * R * strips.phases.divisor() + phase;
  }
  const int first_column = at.column * C;
  const int top = h.start(first_output);
  const int left = w.start(first_column);
  Range rows = h.elements(top, h.kernel + (R - 1) * strips.shift);
  const Range columns = w.elements(left, w.kernel + apart(kColumns));
  rows.end = columns.size() == 0 ? rows.first : rows.end;
  Best best[R][C];
#pragma unroll
  for (int k = 0; k < R; ++k) {
    const int first = max(rows.first - k * strips.shift, 0);
    // A pair's windows have no dilation, so they are not empty.
    const bool is_empty = min(rows.end - k * strips.shift, h.kernel) <= first;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      // The maximum of zeros is the ReLU.
      best[k][c] = Best(is_empty ? -INFINITY : 0.0f, first * w.kernel + columns.first);
    }
  }
  pool_windows<W, R, C, kColumns>(source, h, w, channels, top, left, rows, columns, strips.shift,
                                  best);
  const std::int64_t plane = std::int64_t{at.plane} * (h.output * w.output * channels);
  int row = first_output;
#pragma unroll
  for (int k = 0; k < R; ++k) {
    if (row < h.output) {
      const std::int64_t offset =
          R * C == 1 ? index : plane + ((row * w.output + first_column) * channels + at.channel);
      store(output + offset, best[k][0].values());
      if constexpr (kWinners) {
        store(winners + offset, best[k][0].template winners<Winner>());
      }
      if (C > 1 && first_column + 1 < w.output) {
        store(output + offset + 1, best[k][C - 1].values());
      }
    }
    row += strips.phases.divisor();
  }
}

template <typename T, int N, int W, int R, Columns kColumns, bool kWinners, typename Winner>
void launch(const T* input, T* output, Winner* winners, const PoolGeometry& g,
            cudaStream_t stream) {
  const std::int64_t channels = g.channels_last ? g.channels / N : 1;
  const Windows h(g.h);
  const auto [step, shift] = h.steps();
  const int phases = R > 1 ? step : 1;
  const auto launch_packs = [&](const Packs& packs, std::int64_t first_plane) {
    const std::int64_t first = first_plane * g.h.input * g.w.input * channels;
    const std::int64_t first_output = first_plane * g.h.output * g.w.output * channels;
    forward_kernel<T, N, W, R, kColumns, kWinners, Winner>
        <<<blocks_for(packs), kThreads, 0, stream>>>(
            reinterpret_cast<const Pack<T, N>*>(input) + first,
            reinterpret_cast<Pack<T, N>*>(output) + first_output,
            kWinners ? reinterpret_cast<Pack<Winner, N>*>(winners) + first_output : nullptr, packs,
            h, Windows(g.w), Strips{Division(phases), shift});
  };
  for_packs(g.channels_last ? g.batch : g.batch * g.channels, channels, g.h.output,
            apart(kColumns) > 0 ? ceil_div(g.w.output, 2) : g.w.output,
            ceil_div(g.h.output, phases * R) * phases, launch_packs);
}

/// Return whether threads should have strips: where these read so much less that it is worth more
/// than the registers that they need, and threads suffice. Strips at a plane's end may have fewer
/// outputs, but take as long.
bool prefers_strips(const PoolGeometry& g, std::int64_t packs) {
  const auto [step, shift] = Windows(g.h).steps();
  const std::int64_t rows = g.h.kernel + std::int64_t{kStrip - 1} * shift;  // of a strip's windows
  const std::int64_t strips = ceil_div(g.h.output, step * kStrip) * step;   // in a column
  const std::int64_t least_threads = g.channels_last ? 1 << 15 : 1 << 16;
  return std::int64_t{kStrip} * step <= g.h.output && window_size(g) > 4 &&
         20 * strips * rows <= 13 * g.h.output * g.h.kernel && packs / kStrip >= least_threads;
}

template <int N, int W, Columns kColumns, typename T>
void launch(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
            std::int64_t packs, cudaStream_t stream) {
  const bool has_strips = prefers_strips(g, packs);
  if (winners == nullptr) {
    return has_strips ? launch<T, N, W, kStrip, kColumns, false>(input, output, winners, g, stream)
                      : launch<T, N, W, 1, kColumns, false>(input, output, winners, g, stream);
  }
  if constexpr (N == 1 && apart(kColumns) == 0) {  // more would need too many registers
    if (has_strips) {
      return launch<T, N, W, kStrip, kColumns, true>(input, output, winners, g, stream);
    }
  }
  if constexpr (apart(kColumns) == 0) {
    launch<T, N, W, 1, kColumns, true>(input, output, winners, g, stream);
  }
}

/// Launch for planes whose windows have no dilation along a row.
template <int W, typename T>
void launch_adjacent(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
                     std::int64_t outputs, cudaStream_t stream) {
  if constexpr (W > 1 && sizeof(T) <= 4) {
    if (winners == nullptr && g.w.stride == 1) {
      return launch<1, W, Columns::kPairs1>(input, output, winners, g, outputs / 2, stream);
    }
    if constexpr (W > 2) {
      if (winners == nullptr && g.w.stride == 2) {
        return launch<1, W, Columns::kPairs2>(input, output, winners, g, outputs / 2, stream);
      }
    }
  }
  launch<1, W, Columns::kAdjacent>(input, output, winners, g, outputs, stream);
}

template <typename T>
void launch(const T* input, T* output, void* winners, const PoolGeometry& g, cudaStream_t stream) {
  if (!winners_are_bytes(window_size(g)) && winners != nullptr) {
    launch<T, 1, 0, 1, Columns::kAny, true>(input, output, static_cast<std::uint32_t*>(winners), g,
                                            stream);
    return;
  }
  const std::int64_t outputs = g.batch * g.channels * g.h.output * g.w.output;
  auto* const bytes = static_cast<std::uint8_t*>(winners);
  with_pack_size<T>(g, outputs, kLeastPacks, input, output, winners, [&](auto size) {
    with_columns<kMaxColumns>(g.w.kernel, [&](auto width) {
      if constexpr (size() == 1) {
        if (!g.channels_last && g.w.dilation == 1) {
          return launch_adjacent<width()>(input, output, bytes, g, outputs, stream);
        }
      }
      launch<size(), width(), Columns::kAny>(input, output, bytes, g, outputs / size(), stream);
    });
  });
}

}  // namespace

bool launch_forward_direct(ElementType type, const void* input, void* output, void* winners,
                           const PoolGeometry& g, cudaStream_t stream) {
  if (!planes_fit_32_bits(g, g.channels_last ? g.channels : 1)) {
    return false;
  }
  for_type(type, [&](auto number) {
    using T = decltype(number);
    launch(static_cast<const T*>(input), static_cast<T*>(output), winners, g, stream);
  });
  return true;
}

}  // namespace convtime::pool
