#include "core/cuda_check.h"
#include "kernels/relu_max_pool2d/direct.h"
#include "kernels/relu_max_pool2d/gather.cuh"
#include "kernels/relu_max_pool2d/tiles.h"

namespace convtime {
namespace {

using namespace pool;

// Work per thread: the fastest tile in timings on an H200 in 16 bits, or one within 1 % of the
// fastest.

/// Rows of outputs.
template <int K>
constexpr int kPlaneRows = K == 3 ? 2 : 1;

/// For (N, C, H, W), a stride of 2 and a padding of K - 2: a thread writes N elements of each row.
template <typename T, int N, int K>
__global__ void __launch_bounds__(kThreads)
    planes_kernel(const T* grad_output, const std::uint8_t* winners, T* grad_input, unsigned groups,
                  unsigned row_groups, unsigned threads, int height, int out_height) {
  constexpr int kOutputs = N / 2;
  using Vector = Pack<T, N>;
  constexpr int kRows = kPlaneRows<K> + K - 2;
  using Gradients = Pack<T, kOutputs>;
  using Winners = Pack<std::uint8_t, kOutputs>;
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  const unsigned task = min(thread, threads - 1);  // all lanes take part in the shuffles
  const unsigned group = task % groups;
  const unsigned row_group = task / groups % row_groups;
  const std::size_t plane = task / groups / row_groups;
  const int out_width = static_cast<int>(groups) * kOutputs;
  const int first_row = static_cast<int>(row_group) * kPlaneRows<K>;

  const bool is_last_group = group == groups - 1;
  const bool has_no_neighbour = threadIdx.x % 32 == 31 && !is_last_group;
  Gradients gradients[kRows];
  Winners won[kRows];
  Won<T> right[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = min(first_row + i, out_height - 1);
    const std::size_t offset = (plane * out_height + row) * out_width + group * kOutputs;
    gradients[i] = load(reinterpret_cast<const Gradients*>(grad_output + offset));
    won[i] = load(reinterpret_cast<const Winners*>(winners + offset));
    if (K == 3 && has_no_neighbour) {
      right[i] = {load(winners + offset + kOutputs), load(grad_output + offset + kOutputs)};
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if constexpr (K == 3) {
      const unsigned winner = __shfl_down_sync(0xffffffff, unsigned{won[i].lane[0]}, 1);
      const T gradient = __shfl_down_sync(0xffffffff, gradients[i].lane[0], 1);
      if (!has_no_neighbour) {
        right[i] = {static_cast<std::uint8_t>(winner), gradient};
      }
    }
    const bool is_there = first_row + i < out_height;
    if (!is_there || is_last_group) {
      right[i].winner = kDead<std::uint8_t>;
    }
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      won[i].lane[j] = is_there ? won[i].lane[j] : kDead<std::uint8_t>;
    }
  }

  if (thread >= threads) {
    return;
  }
#pragma unroll
  for (int row = 0; row < 2 * kPlaneRows<K>; ++row) {
    Vector sums;
#pragma unroll
    for (int column = 0; column < N; ++column) {
      sums.lane[column] =
          gather<Grouped<K, 2, K - 2>, T>(row % 2, column % 2, [&](int i, int j) -> Won<T> {
            const int p = row / 2 + i;
            const int q = column / 2 + j;
            if (q == kOutputs) {
              return right[p];
            }
            return {won[p].lane[q], gradients[p].lane[q]};
          });
    }
    const int h = 2 * first_row + row;
    if (h >= height) {
      break;
    }
    store(
        reinterpret_cast<Vector*>(grad_input + (plane * height + h) * (2 * out_width) + group * N),
        sums);
  }
}

/// For (N, H, W, C): a thread has 16 bytes of channels of a group.
template <typename T, typename Group>
__global__ void __launch_bounds__(kThreads)
    pixels_kernel(const T* grad_output, const std::uint8_t* winners, T* grad_input,
                  unsigned vectors, unsigned group_columns, unsigned group_rows, unsigned threads,
                  int height, int width, int out_height, int out_width, int padding_h,
                  int padding_w) {
  using Winners = Pack<std::uint8_t, kLanes<T>>;
  constexpr int S = Group::kStride;
  constexpr int kWindows = Group::kWindows;
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= threads) {
    return;
  }
  const unsigned vector = thread % vectors;
  const int group_column = static_cast<int>(thread / vectors % group_columns);
  const int group_row = static_cast<int>(thread / vectors / group_columns % group_rows);
  const std::size_t image = thread / vectors / group_columns / group_rows;
  const int first_row = group_row + padding_h / S + Group::kFirst;
  const int first_column = group_column + padding_w / S + Group::kFirst;

  Vector<T> gradients[kWindows][kWindows];
  Winners won[kWindows][kWindows];
#pragma unroll
  for (int j = 0; j < kWindows; ++j) {
#pragma unroll
    for (int i = 0; i < kWindows; ++i) {
      const int row = clamp(first_row + i, out_height - 1);
      const int column = clamp(first_column + j, out_width - 1);
      const std::size_t offset =
          ((image * out_height + row) * out_width + column) * vectors + vector;
      gradients[i][j] = load(reinterpret_cast<const Vector<T>*>(grad_output) + offset);
      won[i][j] = load(reinterpret_cast<const Winners*>(winners) + offset);
      const bool is_there = row == first_row + i && column == first_column + j;
#pragma unroll
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        won[i][j].lane[lane] = is_there ? won[i][j].lane[lane] : kDead<std::uint8_t>;
      }
    }
  }
#pragma unroll
  for (int row = 0; row < S; ++row) {
#pragma unroll
    for (int column = 0; column < S; ++column) {
      Vector<T> sums;
#pragma unroll
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        sums.lane[lane] = gather<Group, T>(row, column, [&](int i, int j) -> Won<T> {
          return {won[i][j].lane[lane], gradients[i][j].lane[lane]};
        });
      }
      const int h = S * group_row + row;
      const int w = S * group_column + column;
      if (h < height && w < width) {
        store(reinterpret_cast<Vector<T>*>(grad_input) +
                  ((image * height + h) * width + w) * vectors + vector,
              sums);
      }
    }
  }
}

/// For planes of any size: one element of the input's gradient per thread at a time.
template <typename T, typename Winner>
__global__ void __launch_bounds__(kThreads)
    huge_kernel(const T* grad_output, const Winner* winners, T* grad_input, std::int64_t count,
                std::int64_t channels, PoolAxis h, PoolAxis w, bool channels_last) {
  const std::int64_t step = channels_last ? channels : 1;  // from one pixel to the next
  for (std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t pixel = index / step;
    const std::int64_t bottom = pixel / w.input % h.input + h.padding;  // relative to the start of
                                                                        // the padding
    const std::int64_t right = pixel % w.input + w.padding;
    const std::int64_t plane =
        pixel / w.input / h.input * h.output * w.output * step + index % step;
    const std::int64_t reach_h = (h.kernel - std::int64_t{1}) * h.dilation;
    const std::int64_t reach_w = (w.kernel - std::int64_t{1}) * w.dilation;
    const std::int64_t first_row =
        bottom <= reach_h ? 0 : (bottom - reach_h + h.stride - 1) / h.stride;
    const std::int64_t first_column =
        right <= reach_w ? 0 : (right - reach_w + w.stride - 1) / w.stride;
    Wide<T> sum = 0;
    for (std::int64_t oh = first_row; oh < h.output && oh * h.stride <= bottom; ++oh) {
      const std::int64_t row = (bottom - oh * h.stride) / h.dilation;
      for (std::int64_t ow = first_column; ow < w.output && ow * w.stride <= right; ++ow) {
        const std::int64_t column = (right - ow * w.stride) / w.dilation;
        const std::int64_t offset = plane + (oh * w.output + ow) * step;
        if (oh * h.stride + row * h.dilation == bottom &&
            ow * w.stride + column * w.dilation == right &&
            winners[offset] == static_cast<Winner>(row * w.kernel + column)) {
          sum += widen(grad_output[offset]);
        }
      }
    }
    grad_input[index] = narrow<T>(sum);
  }
}

template <typename T, int K>
bool launch_planes(const T* grad_output, const std::uint8_t* winners, T* grad_input,
                   const PoolGeometry& g, cudaStream_t stream) {
  constexpr int N = kLanes<T>;
  if (!has_windows(g, K, 2) || !has_padding(g, K - 2) || g.w.output * 2 != g.w.input ||
      g.w.input % N != 0) {
    return false;
  }
  const std::int64_t groups = g.w.input / N;
  const std::int64_t rows = ceil_div(g.h.input, 2 * kPlaneRows<K>);
  const Grid grid{g.batch * g.channels * rows * groups};
  if (grid.fits()) {
    planes_kernel<T, N, K><<<grid.blocks(), kThreads, 0, stream>>>(
        grad_output, winners, grad_input, static_cast<unsigned>(groups),
        static_cast<unsigned>(rows), static_cast<unsigned>(grid.threads),
        static_cast<int>(g.h.input), static_cast<int>(g.h.output));
  }
  return grid.fits();
}

template <typename Group, typename T>
bool launch_pixels(const T* grad_output, const std::uint8_t* winners, T* grad_input,
                   const PoolGeometry& g, cudaStream_t stream) {
  const std::int64_t vectors = g.channels / kLanes<T>;
  const std::int64_t columns = ceil_div(g.w.input, Group::kStride);
  const std::int64_t rows = ceil_div(g.h.input, Group::kStride);
  const Grid grid{g.batch * rows * columns * vectors};
  if (grid.fits()) {
    pixels_kernel<T, Group><<<grid.blocks(), kThreads, 0, stream>>>(
        grad_output, winners, grad_input, static_cast<unsigned>(vectors),
        static_cast<unsigned>(columns), static_cast<unsigned>(rows),
        static_cast<unsigned>(grid.threads), static_cast<int>(g.h.input),
        static_cast<int>(g.w.input), static_cast<int>(g.h.output), static_cast<int>(g.w.output),
        g.h.padding, g.w.padding);
  }
  return grid.fits();
}

template <typename T, typename Winner>
void launch_huge(const T* grad_output, const Winner* winners, T* grad_input, const PoolGeometry& g,
                 cudaStream_t stream) {
  const std::int64_t count = g.batch * g.channels * g.h.input * g.w.input;
  huge_kernel<<<loop_blocks(count), kThreads, 0, stream>>>(grad_output, winners, grad_input, count,
                                                           g.channels, g.h, g.w, g.channels_last);
}

/// Launch a kernel whose threads handle 16 bytes, if there is one for these tensors.
template <typename T>
bool launch_vectorized(const T* grad_output, const std::uint8_t* winners, T* grad_input,
                       const PoolGeometry& g, cudaStream_t stream) {
  if (!is_aligned(grad_output) || !is_aligned(winners) || !is_aligned(grad_input)) {
    return false;
  }
  if (!g.channels_last) {
    return launch_planes<T, 3>(grad_output, winners, grad_input, g, stream) ||
           launch_planes<T, 2>(grad_output, winners, grad_input, g, stream);
  }
  if (g.channels % kLanes<T> != 0) {
    return false;
  }
  return with_grouped(g, [&](auto windows) {
    return launch_pixels<decltype(windows)>(grad_output, winners, grad_input, g, stream);
  });
}

/// Write each output's index of its winner within the input plane.
template <typename Winner>
__global__ void __launch_bounds__(kThreads)
    indices_kernel(const Winner* winners, std::int64_t* indices, std::int64_t count,
                   std::int64_t step, PoolAxis h, PoolAxis w) {
  for (std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t pixel = index / step;
    const auto position = static_cast<Winner>(winners[index] & ~kDead<Winner>);
    const std::int64_t row =
        pixel / w.output % h.output * h.stride - h.padding + position / w.kernel * h.dilation;
    const std::int64_t column =
        pixel % w.output * w.stride - w.padding + position % w.kernel * w.dilation;
    indices[index] = row * w.input + column;
  }
}

}  // namespace

void launch_relu_max_pool2d_backward(ElementType type, const void* grad_output, const void* winners,
                                     void* grad_input, const PoolGeometry& geometry,
                                     cudaStream_t stream) {
  const PoolGeometry& g = geometry;
  for_type(type, [&](auto number) {
    using T = decltype(number);
    const auto* const from = static_cast<const T*>(grad_output);
    const auto* const bytes = static_cast<const std::uint8_t*>(winners);
    auto* const to = static_cast<T*>(grad_input);
    const bool are_bytes = winners_are_bytes(window_size(g));
    if ((are_bytes && launch_vectorized(from, bytes, to, g, stream)) ||
        launch_backward_tiles(type, grad_output, winners, grad_input, g, stream) ||
        launch_backward_direct(type, grad_output, winners, grad_input, g, stream)) {
      return;
    }
    if (are_bytes) {
      launch_huge(from, bytes, to, g, stream);
    } else {
      launch_huge(from, static_cast<const std::uint32_t*>(winners), to, g, stream);
    }
  });
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

void launch_relu_max_pool2d_indices(const void* winners, std::int64_t* indices,
                                    const PoolGeometry& g, cudaStream_t stream) {
  const std::int64_t count = g.batch * g.channels * g.h.output * g.w.output;
  const std::int64_t step = g.channels_last ? g.channels : 1;
  const auto launch = [&](const auto* of_type) {
    indices_kernel<<<loop_blocks(count), kThreads, 0, stream>>>(of_type, indices, count, step, g.h,
                                                                g.w);
  };
  if (winners_are_bytes(window_size(g))) {
    launch(static_cast<const std::uint8_t*>(winners));
  } else {
    launch(static_cast<const std::uint32_t*>(winners));
  }
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
