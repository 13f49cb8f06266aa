#include "kernels/conv_epilogue/conv_epilogue.h"

#include <cstdint>
#include <type_traits>

#include "core/cuda_check.h"
#include "kernels/activate.cuh"
#include "kernels/elements.cuh"

namespace convtime {
namespace {

using namespace elements;

/// Counts of 16-byte packs fit in 32 bits, whose division is faster than in 64 bits.
template <int N>
using IndexOf = std::conditional_t<N == 1, std::uint64_t, std::uint32_t>;

/// A pack is N adjacent elements. `side` and `channels` count packs: `side` of one channel's
/// adjacent elements, and `channels` of channels. If channels are last (`side` is 0), `channels`
/// counts packs of N channels.
template <typename T, int N, Activation kActivation>
__global__ void __launch_bounds__(kThreads)
    epilogue_kernel(T* y, const T* z, const T* b, Wide<T> alpha, Wide<T> negative_slope,
                    IndexOf<N> packs, IndexOf<N> channels, IndexOf<N> side) {
  using P = Pack<T, N>;
  const IndexOf<N> stride = IndexOf<N>{gridDim.x} * kThreads;
  for (IndexOf<N> i = IndexOf<N>{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += stride) {
    P* const place = reinterpret_cast<P*>(y) + i;
    const P old = *place;
    P addend;
    if (z != nullptr) {
      addend = load(reinterpret_cast<const P*>(z) + i);
    }
    P bias;
    if (b != nullptr && side == 0) {
      bias = load(reinterpret_cast<const P*>(b) + i % channels);
    } else if (b != nullptr) {
      const T one = load(b + i / side % channels);
#pragma unroll
      for (int lane = 0; lane < N; ++lane) {
        bias.lane[lane] = one;
      }
    }
    P result;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      Wide<T> x = widen(old.lane[lane]);
      if (z != nullptr) {
        x += alpha * widen(addend.lane[lane]);
      }
      if (b != nullptr) {
        x += widen(bias.lane[lane]);
      }
      result.lane[lane] = narrow<T>(activate<kActivation>(x, negative_slope));
    }
    store(place, result);
  }
}

template <typename T, int N, Activation kActivation>
void launch(const ConvEpilogue& e, cudaStream_t stream) {
  using Index = IndexOf<N>;
  const std::int64_t packs = e.count / N;
  epilogue_kernel<T, N, kActivation><<<loop_blocks(packs), kThreads, 0, stream>>>(
      static_cast<T*>(e.y), static_cast<const T*>(e.z), static_cast<const T*>(e.b),
      static_cast<Wide<T>>(e.alpha), static_cast<Wide<T>>(e.negative_slope),
      static_cast<Index>(packs), static_cast<Index>(e.channels_last ? e.channels / N : e.channels),
      static_cast<Index>(e.channels_last ? 0 : e.plane / N));
}

template <typename T>
bool is_vectorisable(const ConvEpilogue& e) {
  const std::int64_t side_by_side = e.channels_last ? e.channels : e.plane;
  return e.count / kLanes<T> < std::int64_t{1} << 31 && side_by_side % kLanes<T> == 0 &&
         is_aligned(e.y) && is_aligned(e.z) && (!e.channels_last || is_aligned(e.b));
}

template <Activation kActivation>
void launch(ElementType type, const ConvEpilogue& e, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    if (is_vectorisable<T>(e)) {
      launch<T, kLanes<T>, kActivation>(e, stream);
    } else {
      launch<T, 1, kActivation>(e, stream);
    }
  });
}

}  // namespace

void launch_conv_epilogue(ElementType type, const ConvEpilogue& e, cudaStream_t stream) {
  if (e.count == 0) {
    return;
  }
  switch (e.activation) {
    case Activation::kIdentity:
      launch<Activation::kIdentity>(type, e, stream);
      break;
    case Activation::kRelu:
      launch<Activation::kRelu>(type, e, stream);
      break;
    case Activation::kRelu6:
      launch<Activation::kRelu6>(type, e, stream);
      break;
    case Activation::kLeakyRelu:
      launch<Activation::kLeakyRelu>(type, e, stream);
      break;
    case Activation::kGelu:
      launch<Activation::kGelu>(type, e, stream);
      break;
    case Activation::kGeluTanh:
      launch<Activation::kGeluTanh>(type, e, stream);
      break;
    case Activation::kSilu:
      launch<Activation::kSilu>(type, e, stream);
      break;
    case Activation::kSigmoid:
      launch<Activation::kSigmoid>(type, e, stream);
      break;
    case Activation::kTanh:
      launch<Activation::kTanh>(type, e, stream);
      break;
  }
  CONVTIME_CUDA_CHECK(cudaGetLastError());
}

}  // namespace convtime
