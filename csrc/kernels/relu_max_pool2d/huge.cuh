#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/relu_max_pool2d/pool_elements.cuh"

// For planes of any size: a thread has one element at a time, indexed with 64 bits.
namespace convtime::pool {

/// Call function(index) for the indices of the thread.
template <typename Function>
void for_indices(std::int64_t count, const Function& function) {
  for (std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += std::int64_t{gridDim.x} * kThreads) {
    function(index);
  }
}

/// In the order of ATen's own kernel.
template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) forward_huge(const HugeCall call) {
  for_indices(call.count, [&](std::int64_t index) {
    const std::int64_t pixel = index / call.channels;
    const std::int64_t ow = pixel % call.out_width;
    const std::int64_t oh = pixel / call.out_width % call.out_height;
    const std::int64_t plane = pixel / call.out_width / call.out_height;
    const T* const source = static_cast<const T*>(call.from) +
                            plane * call.height * call.width * call.channels +
                            index % call.channels;
    const std::int64_t top = oh * P.h.stride - P.h.padding;
    const std::int64_t left = ow * P.w.stride - P.w.padding;
    const std::int64_t first_row = top < 0 ? (P.h.dilation - 1 - top) / P.h.dilation : 0;
    const std::int64_t first_column = left < 0 ? (P.w.dilation - 1 - left) / P.w.dilation : 0;
    Wide<T> best = lowest<T>();
    std::int64_t position = first_row * P.w.kernel + first_column;
#pragma unroll 1
    for (std::int64_t i = first_row; i < P.h.kernel && top + i * P.h.dilation < call.height; ++i) {
#pragma unroll 1
      for (std::int64_t j = first_column; j < P.w.kernel && left + j * P.w.dilation < call.width;
           ++j) {
        const T element = source[((top + i * P.h.dilation) * call.width + left + j * P.w.dilation) *
                                 call.channels];
        const Wide<T> value = widen(max_nan(element, T(0)));
        if (value > best || value != value) {
          best = value;
          position = i * P.w.kernel + j;
        }
      }
    }
    static_cast<T*>(call.to)[index] = narrow<T>(best);
    if constexpr (!std::is_same_v<Winner, void>) {
      const auto winner = static_cast<Winner>(position);
      static_cast<Winner*>(call.winners)[index] =
          best > 0 || best != best ? winner : static_cast<Winner>(winner | kDead<Winner>);
    }
  });
}

template <typename T, typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) backward_huge(const HugeCall call) {
  const auto* const winners = static_cast<const Winner*>(call.winners);
  for_indices(call.count, [&](std::int64_t index) {
    const std::int64_t pixel = index / call.channels;
    // Relative to the start of the padding
    const std::int64_t bottom = pixel / call.width % call.height + P.h.padding;
    const std::int64_t right = pixel % call.width + P.w.padding;
    const std::int64_t plane =
        pixel / call.width / call.height * call.out_height * call.out_width * call.channels +
        index % call.channels;
    const std::int64_t reach_h = (P.h.kernel - std::int64_t{1}) * P.h.dilation;
    const std::int64_t reach_w = (P.w.kernel - std::int64_t{1}) * P.w.dilation;
    const std::int64_t first_row =
        bottom <= reach_h ? 0 : (bottom - reach_h + P.h.stride - 1) / P.h.stride;
    const std::int64_t first_column =
        right <= reach_w ? 0 : (right - reach_w + P.w.stride - 1) / P.w.stride;
    Wide<T> sum = 0;
#pragma unroll 1
    for (std::int64_t oh = first_row; oh < call.out_height && oh * P.h.stride <= bottom; ++oh) {
      const std::int64_t row = (bottom - oh * P.h.stride) / P.h.dilation;
#pragma unroll 1
      for (std::int64_t ow = first_column; ow < call.out_width && ow * P.w.stride <= right; ++ow) {
        const std::int64_t column = (right - ow * P.w.stride) / P.w.dilation;
        const std::int64_t offset = plane + (oh * call.out_width + ow) * call.channels;
        if (oh * P.h.stride + row * P.h.dilation == bottom &&
            ow * P.w.stride + column * P.w.dilation == right &&
            winners[offset] == static_cast<Winner>(row * P.w.kernel + column)) {
          sum += widen(static_cast<const T*>(call.from)[offset]);
        }
      }
    }
    static_cast<T*>(call.to)[index] = narrow<T>(sum);
  });
}

/// Write each output's index of its winner within the input plane.
template <typename Winner, Problem P>
__global__ void __launch_bounds__(kThreads) indices_huge(const HugeCall call) {
  for_indices(call.count, [&](std::int64_t index) {
    const std::int64_t pixel = index / call.channels;
    const auto position = static_cast<Winner>(static_cast<const Winner*>(call.winners)[index] &
                                              static_cast<Winner>(~kDead<Winner>));
    const std::int64_t row = pixel / call.out_width % call.out_height * P.h.stride - P.h.padding +
                             position / P.w.kernel * std::int64_t{P.h.dilation};
    const std::int64_t column = pixel % call.out_width * P.w.stride - P.w.padding +
                                position % P.w.kernel * std::int64_t{P.w.dilation};
    static_cast<std::int64_t*>(call.to)[index] = row * call.width + column;
  });
}

}  // namespace convtime::pool
