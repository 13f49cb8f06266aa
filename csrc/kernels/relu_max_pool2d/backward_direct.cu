#include "kernels/relu_max_pool2d/direct.cuh"

namespace convtime::pool {
namespace {

/// Kernels are compiled for input elements in up to so many columns of windows, and for any number.
constexpr int kMaxColumns = 7;

/// Rows of windows, in C columns, that a thread loads before it compares the first of their
/// winners: for R elements, as many as fit in 64 registers, and at most those of square windows
/// with a stride of 1. With one, the compiler mixes loads and comparisons, which then wait for each
/// other.
template <int C, int R>
constexpr int kRowsAtOnce = R > 1 ? std::clamp(32 / C, 2, C + R - 1) : 2;

/// Rows of elements of a thread, which has one column: the columns' windows are the same. Tensors
/// of fewer threads than kLeastStrips leave multiprocessors idle, and have one row per thread.
constexpr int kStrip = 4;
constexpr std::int64_t kLeastStrips = 1 << 17;

/// Threads, if they have packs.
constexpr std::int64_t kLeastPacks = 1 << 16;

/// Windows along both axes.
struct Grid2d {
  Windows h;
  Windows w;
  Windows::Steps steps_h;
  Windows::Steps steps_w;

  explicit Grid2d(const PoolGeometry& g) : h(g.h), w(g.w), steps_h(h.steps()), steps_w(w.steps()) {}
};

/// Sums of the gradients of the windows that a pack of input elements won.
template <typename T, int N>
struct Sums {
  Wide<T> value[N] = {};

  template <typename Winner>
  __device__ void add(const Pack<T, N>& gradient, const Pack<Winner, N>& winner, int position,
                      bool is_window = true) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool wins = is_window & (winner.lane[i] == static_cast<Winner>(position));
      value[i] += wins ? widen(gradient.lane[i]) : Wide<T>(0);
    }
  }
};

/// Add up the gradients of the windows that each of R packs of elements below each other won, in
/// the order of windows. Windows begin in the rows of outputs from `row` to before `end`, in steps,
/// and have the first pack as their element `element`. Packs are in at most C columns of windows,
/// or in any number if C is zero.
template <int C, int R, typename T, int N, typename Winner>
__device__ void gather_windows(const Pack<T, N>* grad_output, const Pack<Winner, N>* winners,
                               const Grid2d& windows, int channels, int row, int end, int element,
                               const Covering& columns, Sums<T, N> (&sums)[R]) {
  const auto& [h, w, steps_h, steps_w] = windows;
  const auto offset_of = [&](int row) { return (row * w.output + columns.first) * channels; };
  // With R > 1, packs are in different rows of windows, which have no dilation.
  const auto for_packs_of = [&](int element, const auto& add) {
#pragma unroll
    for (int k = 0; k < R; ++k) {
      if (R == 1 || static_cast<unsigned>(element + k) < static_cast<unsigned>(h.kernel)) {
        add(sums[k], (element + k) * w.kernel + columns.element);
      }
    }
  };
  row = columns.first < columns.end ? row : end;
  if constexpr (C == 0) {
    for (; row < end; row += steps_h.output, element -= steps_h.element) {
      int offset = offset_of(row);
      int behind = 0;
#pragma unroll 4
      for (int column = columns.first; column < columns.end; column += steps_w.output) {
        const Pack<T, N> gradient = load(grad_output + offset);
        const Pack<Winner, N> won = load(winners + offset);
        for_packs_of(element, [&](Sums<T, N>& sum, int position) {
          sum.add(gradient, won, position - behind);
        });
        offset += steps_w.output * channels;
        behind += steps_w.element;
      }
    }
  } else {
    constexpr int kRows = kRowsAtOnce<C, R>;
    bool is_window[C];
    std::int64_t offsets[C];
#pragma unroll
    for (int j = 0; j < C; ++j) {
      is_window[j] = columns.first + j * steps_w.output < columns.end;
      offsets[j] = is_window[j] ? j * steps_w.output * channels : 0;
    }
#pragma unroll 1
    for (; row < end; row += kRows * steps_h.output, element -= kRows * steps_h.element) {
      Pack<T, N> gradients[kRows][C];
      Pack<Winner, N> won[kRows][C];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i * steps_h.output < end) {
          const int offset = offset_of(row + i * steps_h.output);
#pragma unroll
          for (int j = 0; j < C; ++j) {
            gradients[i][j] = load(grad_output + offset + offsets[j]);
            won[i][j] = load(winners + offset + offsets[j]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i * steps_h.output < end) {
          for_packs_of(element - i * steps_h.element, [&](Sums<T, N>& sum, int position) {
#pragma unroll
            for (int j = 0; j < C; ++j) {
              sum.add(gradients[i][j], won[i][j], position - j * steps_w.element, is_window[j]);
            }
          });
        }
      }
    }
  }
}

/// A thread has `strip` packs below each other, which share the loads of their windows if R > 1: it
/// then has R, and rows have no dilation.
template <typename T, int N, int C, int R, typename Winner>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const Pack<T, N>* grad_output, const Pack<Winner, N>* winners,
                    Pack<T, N>* grad_input, const Packs packs, const Grid2d windows, int strip) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= packs.count) {
    return;
  }
  const auto& [h, w, steps_h, steps_w] = windows;
  const PackPosition at = position_of(packs, index);
  const int channels = packs.channels.divisor();
  const std::int64_t plane = at.plane * (std::int64_t{h.output} * w.output * channels) + at.channel;
  grad_output += plane;
  winners += plane;
  grad_input += at.plane * (std::int64_t{h.input} * w.input * channels) + at.channel;
  const Covering columns = w.covering(at.column, steps_w);
  const int first_row = at.row * strip;
  const int end_row = min(first_row + strip, h.input);
#pragma unroll 1
  for (int row = first_row; row < end_row; row += R) {
    Sums<T, N> sums[R];
    if constexpr (R > 1) {
      const Range outputs = h.outputs({row, end_row});
      gather_windows<C>(grad_output, winners, windows, channels, outputs.first, outputs.end,
                        row - h.start(outputs.first), columns, sums);
    } else {
      const Covering rows = h.covering(row, steps_h);
      gather_windows<C>(grad_output, winners, windows, channels, rows.first, rows.end, rows.element,
                        columns, sums);
    }
#pragma unroll
    for (int k = 0; k < R; ++k) {
      if (row + k < end_row) {
        Pack<T, N> result;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          result.lane[i] = narrow<T>(sums[k].value[i]);
        }
        store(grad_input + ((row + k) * w.input + at.column) * channels, result);
      }
    }
  }
}

template <int N, int C, typename T, typename Winner>
void launch(const T* grad_output, const Winner* winners, T* grad_input, const PoolGeometry& g,
            cudaStream_t stream) {
  const std::int64_t channels = g.channels_last ? g.channels / N : 1;
  const Grid2d windows(g);
  const std::int64_t packs_in_all = g.batch * g.channels / N * g.h.input * g.w.input;
  const int strip = packs_in_all / kStrip >= kLeastStrips ? kStrip : 1;
  const auto launch_with = [&](auto shared, const Packs& packs, std::int64_t first_plane) {
    const std::int64_t first = first_plane * g.h.output * g.w.output * channels;
    const std::int64_t first_input = first_plane * g.h.input * g.w.input * channels;
    backward_kernel<T, N, C, shared(), Winner><<<blocks_for(packs), kThreads, 0, stream>>>(
        reinterpret_cast<const Pack<T, N>*>(grad_output) + first,
        reinterpret_cast<const Pack<Winner, N>*>(winners) + first,
        reinterpret_cast<Pack<T, N>*>(grad_input) + first_input, packs, windows, strip);
  };
  const auto launch_packs = [&](const Packs& packs, std::int64_t first_plane) {
    if constexpr (N == 1) {  // more would need too many registers
      if (strip == kStrip && g.h.dilation == 1) {
        return launch_with(std::integral_constant<int, kStrip>(), packs, first_plane);
      }
    }
    launch_with(std::integral_constant<int, 1>(), packs, first_plane);
  };
  for_packs(g.channels_last ? g.batch : g.batch * g.channels, channels, g.h.input, g.w.input,
            ceil_div(g.h.input, strip), launch_packs);
}

template <typename T>
void launch(const T* grad_output, const void* winners, T* grad_input, const PoolGeometry& g,
            cudaStream_t stream) {
  if (!winners_are_bytes(window_size(g))) {
    launch<1, 0>(grad_output, static_cast<const std::uint32_t*>(winners), grad_input, g, stream);
    return;
  }
  const std::int64_t inputs = g.batch * g.channels * g.h.input * g.w.input;
  const std::int64_t columns = ceil_div(g.w.kernel, Windows(g.w).steps().element);
  with_pack_size<T>(g, inputs, kLeastPacks, grad_output, grad_input, winners, [&](auto size) {
    with_columns<kMaxColumns>(columns, [&](auto most) {
      launch<size(), most()>(grad_output, static_cast<const std::uint8_t*>(winners), grad_input, g,
                             stream);
    });
  });
}

}  // namespace

bool launch_backward_direct(ElementType type, const void* grad_output, const void* winners,
                            void* grad_input, const PoolGeometry& g, cudaStream_t stream) {
  if (!planes_fit_32_bits(g, g.channels_last ? g.channels : 1)) {
    return false;
  }
  for_type(type, [&](auto number) {
    using T = decltype(number);
    launch(static_cast<const T*>(grad_output), winners, static_cast<T*>(grad_input), g, stream);
  });
  return true;
}

}  // namespace convtime::pool
