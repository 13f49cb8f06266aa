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

/// Outputs of a strip that shares the loads of its windows, and the least number of threads for
/// which that is faster: fewer leave multiprocessors idle. Fitted, like kLeastPacks, on the 240
/// forward passes of benchmarks/pool.py on an H200.
constexpr int kStrip = 4;
constexpr std::int64_t kLeastStrips = 1 << 15;
/// Threads, if they have packs.
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

/// The same if the elements of a row are adjacent: loads then differ in a constant offset.
template <int W, typename T>
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

/// Compare the elements of R windows, of which the first is at (top, left) and the others are
/// `shift` elements below each other, by rows. `rows` are those of all windows, counted from the
/// first one's.
template <int W, int R, bool kAdjacent, typename T, int N, typename Best>
__device__ void pool_windows(const Pack<T, N>* source, const Windows& h, const Windows& w,
                             int channels, int top, int left, Range rows, Range columns, int shift,
                             Best (&best)[R]) {
  const std::conditional_t<kAdjacent, AdjacentRow<W, T>, Row<W, T, N>> in_row(w, channels, left,
                                                                              columns);
  const auto row_of = [&](int i) {
    const int row = top + i * h.dilation.divisor();
    return source + row * (w.input * channels);
  };
  // The largest of a row challenges the best of each window that has this row.
  const auto challenge_all = [&](const Best& of_row, int i) {
#pragma unroll
    for (int k = 0; k < R; ++k) {
      const int element = i - k * shift;
      if (R == 1 || static_cast<unsigned>(element) < static_cast<unsigned>(h.kernel)) {
        best[k].challenge(of_row, element * w.kernel);
      }
    }
  };
  if constexpr (W == 0) {
    for (int i = rows.first; i < rows.end; ++i) {
      const Pack<T, N>* const row = row_of(i);
      Best of_row(0.0f, columns.first);
#pragma unroll 4
      for (int j = columns.first; j < columns.end; ++j) {
        of_row.challenge(in_row.at(row, j), j);
      }
      challenge_all(of_row, i);
    }
  } else {
    constexpr int kRows = kRowsAtOnce<T, N, W>;
#pragma unroll 1
    for (int i = rows.first; i < rows.end; i += kRows) {
      Pack<T, N> elements[kRows][W];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
          const Pack<T, N>* const row = row_of(i + r);
#pragma unroll
          for (int j = 0; j < W; ++j) {
            elements[r][j] = in_row.at(row, j);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
          Best of_row(0.0f, columns.first);
#pragma unroll
          for (int j = 0; j < W; ++j) {
            of_row.challenge(elements[r][j], in_row.position(j));
          }
          challenge_all(of_row, i + r);
        }
      }
    }
  }
}

/// A thread computes a strip of R packs of outputs. Windows have W columns, or any number if W is
/// zero, whose elements are adjacent if kAdjacent.
template <typename T, int N, int W, int R, bool kAdjacent, bool kWinners, typename Winner>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const Pack<T, N>* input, Pack<T, N>* output, Pack<Winner, N>* winners,
                   const Packs packs, const Windows h, const Windows w, const Strips strips) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= packs.count) {
    return;
  }
  using Best = std::conditional_t<kWinners, Leader<T, N>, Maximum<T, N>>;
  const PackPosition at = position_of(packs, index);
  const int channels = kAdjacent ? 1 : packs.channels.divisor();
  // Offsets in a plane fit in 32 bits.
  const Pack<T, N>* source =
      input + std::int64_t{at.plane} * (h.input * w.input * channels) + at.channel;
  asm("" : "+l"(source));  // an address, and not an index that each load makes an address of
  int first_output = at.row;
  if constexpr (R > 1) {
    int phase = at.row;
    first_output = strips.phases.split(phase) * R * strips.phases.divisor() + phase;
  }
  const int top = h.start(first_output);
  const int left = w.start(at.column);
  Range rows = h.elements(top, h.kernel + (R - 1) * strips.shift);
  const Range columns = w.elements(left);
  rows.end = columns.size() == 0 ? rows.first : rows.end;
  Best best[R];
#pragma unroll
  for (int k = 0; k < R; ++k) {
    const int first = max(rows.first - k * strips.shift, 0);
    const bool is_empty = min(rows.end - k * strips.shift, h.kernel) <= first;
    // The maximum of zeros is the ReLU.
    best[k] = Best(is_empty ? -INFINITY : 0.0f, first * w.kernel + columns.first);
  }
  pool_windows<W, R, kAdjacent>(source, h, w, channels, top, left, rows, columns, strips.shift,
                                best);
  const std::int64_t plane = std::int64_t{at.plane} * (h.output * w.output * channels);
  int row = first_output;
#pragma unroll
  for (int k = 0; k < R; ++k) {
    if (row < h.output) {
      const std::int64_t offset =
          R == 1 ? index : plane + ((row * w.output + at.column) * channels + at.channel);
      store(output + offset, best[k].values());
      if constexpr (kWinners) {
        store(winners + offset, best[k].template winners<Winner>());
      }
    }
    row += strips.phases.divisor();
  }
}

template <typename T, int N, int W, int R, bool kAdjacent, bool kWinners, typename Winner>
void launch(const T* input, T* output, Winner* winners, const PoolGeometry& g,
            cudaStream_t stream) {
  const std::int64_t channels = g.channels_last ? g.channels / N : 1;
  const Windows h(g.h);
  const auto [step, shift] = h.steps();
  const int phases = R > 1 ? step : 1;
  const auto launch_packs = [&](const Packs& packs, std::int64_t first_plane) {
    const std::int64_t first = first_plane * g.h.input * g.w.input * channels;
    const std::int64_t first_output = first_plane * g.h.output * g.w.output * channels;
    forward_kernel<T, N, W, R, kAdjacent, kWinners, Winner>
        <<<blocks_for(packs), kThreads, 0, stream>>>(
            reinterpret_cast<const Pack<T, N>*>(input) + first,
            reinterpret_cast<Pack<T, N>*>(output) + first_output,
            kWinners ? reinterpret_cast<Pack<Winner, N>*>(winners) + first_output : nullptr, packs,
            h, Windows(g.w), Strips{Division(phases), shift});
  };
  for_packs(g.channels_last ? g.batch : g.batch * g.channels, channels, g.h.output, g.w.output,
            ceil_div(g.h.output, phases * R) * phases, launch_packs);
}

/// Return whether threads should have strips: where windows share enough rows, and threads suffice.
bool prefers_strips(const PoolGeometry& g, std::int64_t packs) {
  const auto [step, shift] = Windows(g.h).steps();
  const std::int64_t rows = g.h.kernel + std::int64_t{kStrip - 1} * shift;  // of a strip's windows
  return std::int64_t{kStrip} * step <= g.h.output && 6 * rows <= 5 * kStrip * g.h.kernel &&
         packs / kStrip >= kLeastStrips;
}

template <int N, int W, bool kAdjacent, typename T>
void launch(const T* input, T* output, std::uint8_t* winners, const PoolGeometry& g,
            std::int64_t packs, cudaStream_t stream) {
  const bool has_strips = prefers_strips(g, packs);
  if (winners == nullptr) {
    return has_strips ? launch<T, N, W, kStrip, kAdjacent, false>(input, output, winners, g, stream)
                      : launch<T, N, W, 1, kAdjacent, false>(input, output, winners, g, stream);
  }
  if constexpr (N == 1) {  // more would need too many registers
    if (has_strips) {
      return launch<T, N, W, kStrip, kAdjacent, true>(input, output, winners, g, stream);
    }
  }
  launch<T, N, W, 1, kAdjacent, true>(input, output, winners, g, stream);
}

template <typename T>
void launch(const T* input, T* output, void* winners, const PoolGeometry& g, cudaStream_t stream) {
  if (!winners_are_bytes(window_size(g)) && winners != nullptr) {
    launch<T, 1, 0, 1, false, true>(input, output, static_cast<std::uint32_t*>(winners), g, stream);
    return;
  }
  const std::int64_t outputs = g.batch * g.channels * g.h.output * g.w.output;
  auto* const bytes = static_cast<std::uint8_t*>(winners);
  with_pack_size<T>(g, outputs, kLeastPacks, input, output, winners, [&](auto size) {
    with_columns<kMaxColumns>(g.w.kernel, [&](auto width) {
      if constexpr (size() == 1) {
        if (!g.channels_last && g.w.dilation == 1) {
          return launch<1, width(), true>(input, output, bytes, g, outputs, stream);
        }
      }
      launch<size(), width(), false>(input, output, bytes, g, outputs / size(), stream);
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
