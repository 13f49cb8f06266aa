#include <cmath>
#include <type_traits>

#include "kernels/relu_max_pool2d/direct.cuh"

namespace convtime::pool {
namespace {

/// Kernels are compiled for windows of up to so many columns, and for any number.
constexpr int kMaxColumns = 7;

/// Rows of a window of W columns that a thread loads before it compares their elements: as many as
/// fit in 64 registers, and at most those of a square window. With one, the compiler mixes loads
/// and comparisons, which then wait for each other.
template <typename T, int N, int W>
constexpr int kRowsAtOnce =
    std::clamp(64 / (W * std::max(1, N* static_cast<int>(sizeof(T)) / 4)), 2, std::max(W, 2));

/// The largest values so far, without their positions.
template <typename T, int N>
struct Maximum {
  Pack<T, N> best;

  __device__ Maximum(float least, int) : best(filled<T, N>(least)) {}
  __device__ void challenge(const Pack<T, N>& other, int) { best = max_nan(best, other); }
  __device__ Pack<T, N> values() const { return best; }
};

/// Compare the elements of a window at (top, left), by rows. Offsets are in bytes: the compiler
/// then adds them to addresses in fewer instructions.
template <int W, typename T, int N, typename Best>
__device__ void pool_window(const Pack<T, N>* source, const Windows& h, const Windows& w,
                            int channels, int top, int left, Range rows, Range columns,
                            Best& best) {
  using Bytes = std::int64_t;
  constexpr Bytes kBytes = sizeof(Pack<T, N>);
  const auto row_of = [&](int i) {
    const int row = top + i * h.dilation.divisor();
    return reinterpret_cast<const char*>(source) + row * w.input * channels * kBytes;
  };
  const auto offset_of = [&](int j) {
    return (left + j * w.dilation.divisor()) * channels * kBytes;
  };
  const auto load_from = [](const char* address) {
    return load(reinterpret_cast<const Pack<T, N>*>(address));
  };
  if constexpr (W == 0) {
    for (int i = rows.first; i < rows.end; ++i) {
      const char* const row = row_of(i);
#pragma unroll 4
      for (int j = columns.first; j < columns.end; ++j) {
        best.challenge(load_from(row + offset_of(j)), i * w.kernel + j);
      }
    }
  } else {
    constexpr int kRows = kRowsAtOnce<T, N, W>;
    // A position outside the input is clamped to the window's nearest one inside: a repeated
    // element does not change a maximum.
    int positions[W];
    Bytes offsets[W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      positions[j] = max(columns.first, min(j, columns.end - 1));
      offsets[j] = offset_of(positions[j]);
    }
#pragma unroll 1
    for (int i = rows.first; i < rows.end; i += kRows) {
      Pack<T, N> elements[kRows][W];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
          const char* const row = row_of(i + r);
#pragma unroll
          for (int j = 0; j < W; ++j) {
            elements[r][j] = load_from(row + offsets[j]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r < rows.end) {
#pragma unroll
          for (int j = 0; j < W; ++j) {
            best.challenge(elements[r][j], (i + r) * W + positions[j]);
          }
        }
      }
    }
  }
}

/// Windows have W columns, or any number if W is zero.
template <typename T, int N, int W, bool kWinners, typename Winner>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const Pack<T, N>* input, Pack<T, N>* output, Pack<Winner, N>* winners,
                   const Packs packs, const Windows h, const Windows w) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= packs.count) {
    return;
  }
  const PackPosition at = position_of(packs, index);
  const int channels = packs.channels.divisor();
  const Pack<T, N>* const source =
      input + at.plane * (std::int64_t{h.input} * w.input * channels) + at.channel;
  const int top = h.start(at.row);
  const int left = w.start(at.column);
  Range rows = h.elements(top);
  const Range columns = w.elements(left);
  const bool is_empty = rows.size() == 0 || columns.size() == 0;
  rows.end = is_empty ? rows.first : rows.end;
  const float least = is_empty ? -INFINITY : 0.0f;  // the maximum of zeros is the ReLU
  std::conditional_t<kWinners, Leader<T, N>, Maximum<T, N>> best(
      least, rows.first * w.kernel + columns.first);
  pool_window<W>(source, h, w, channels, top, left, rows, columns, best);
  store(output + index, best.values());
  if constexpr (kWinners) {
    store(winners + index, best.template winners<Winner>());
  }
}

template <typename T, int N, int W, bool kWinners, typename Winner>
void launch(const T* input, T* output, Winner* winners, const PoolGeometry& g,
            cudaStream_t stream) {
  const std::int64_t channels = g.channels_last ? g.channels / N : 1;
  const auto launch_packs = [&](const Packs& packs, std::int64_t first_plane) {
    const std::int64_t first = first_plane * g.h.input * g.w.input * channels;
    const std::int64_t first_output = first_plane * g.h.output * g.w.output * channels;
    forward_kernel<T, N, W, kWinners, Winner><<<blocks_for(packs), kThreads, 0, stream>>>(
        reinterpret_cast<const Pack<T, N>*>(input) + first,
        reinterpret_cast<Pack<T, N>*>(output) + first_output,
        kWinners ? reinterpret_cast<Pack<Winner, N>*>(winners) + first_output : nullptr, packs,
        Windows(g.h), Windows(g.w));
  };
  for_packs(g.channels_last ? g.batch : g.batch * g.channels, channels, g.h.output, g.w.output,
            launch_packs);
}

template <typename T>
void launch(const T* input, T* output, void* winners, const PoolGeometry& g, cudaStream_t stream) {
  if (!winners_are_bytes(window_size(g)) && winners != nullptr) {
    launch<T, 1, 0, true>(input, output, static_cast<std::uint32_t*>(winners), g, stream);
    return;
  }
  const std::int64_t outputs = g.batch * g.channels * g.h.output * g.w.output;
  auto* const bytes = static_cast<std::uint8_t*>(winners);
  with_pack_size<T>(g, outputs, input, output, winners, [&](auto size) {
    with_columns<kMaxColumns>(g.w.kernel, [&](auto width) {
      if (winners == nullptr) {
        launch<T, size(), width(), false>(input, output, bytes, g, stream);
      } else {
        launch<T, size(), width(), true>(input, output, bytes, g, stream);
      }
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
