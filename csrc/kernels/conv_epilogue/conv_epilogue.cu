#include "kernels/conv_epilogue/conv_epilogue.h"

#include <cstdint>

#include "core/cuda_check.h"
#include "kernels/activate.cuh"
#include "kernels/elements.cuh"

namespace convtime {
namespace {

using namespace elements;

template <typename T>
struct Arguments {
  T* y;
  const T* z;  // null for none
  const T* b;  // null for none
  Wide<T> alpha;
  Wide<T> negative_slope;
};

template <Activation kActivation, typename T>
__device__ T finish(const Arguments<T>& a, T y, T z, T bias) {
  Wide<T> x = widen(y);
  if (a.z != nullptr) {
    x += a.alpha * widen(z);
  }
  if (a.b != nullptr) {
    x += widen(bias);
  }
  return narrow<T>(activate<kActivation>(x, a.negative_slope));
}

/// In memory, `side` adjacent elements belong to one channel, the next ones to the next channel,
/// and so on, and after the last channel to the first one. The first `packs` packs of elements are
/// read and written as such, all others one by one. Index holds `count` and the number of threads
/// more.
template <Activation kActivation, typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    epilogue_kernel(Arguments<T> a, Index count, Index packs, Index channels, Index side) {
  constexpr int kPack = kLanes<T>;
  const Index thread = Index{blockIdx.x} * kThreads + threadIdx.x;
  const Index threads = Index{gridDim.x} * kThreads;
  const bool bias_in_packs = side == 1 && channels % kPack == 0 && is_aligned(a.b);
  for (Index i = thread; i < packs; i += threads) {
    Vector<T>* const place = reinterpret_cast<Vector<T>*>(a.y) + i;
    const Vector<T> old = *place;
    Vector<T> addend{};
    if (a.z != nullptr) {
      addend = load(reinterpret_cast<const Vector<T>*>(a.z) + i);
    }
    Vector<T> bias{};
    if (a.b != nullptr && bias_in_packs) {
      bias = load(reinterpret_cast<const Vector<T>*>(a.b) + i % (channels / kPack));
    } else if (a.b != nullptr) {
      const Index sides = i * kPack / side;
      Index left = side - (i * kPack - sides * side);
      Index channel = sides % channels;
      bias.lane[0] = load(a.b + channel);
#pragma unroll
      for (int lane = 1; lane < kPack; ++lane) {
        bias.lane[lane] = bias.lane[lane - 1];
        if (--left == 0) {
          left = side;
          channel = channel + 1 == channels ? 0 : channel + 1;
          bias.lane[lane] = load(a.b + channel);
        }
      }
    }
    Vector<T> result;
#pragma unroll
    for (int lane = 0; lane < kPack; ++lane) {
      result.lane[lane] =
          finish<kActivation>(a, old.lane[lane], addend.lane[lane], bias.lane[lane]);
    }
    store(place, result);
  }
  for (Index i = packs * kPack + thread; i < count; i += threads) {
    const T addend = a.z != nullptr ? load(a.z + i) : T();
    const T bias = a.b != nullptr ? load(a.b + i / side % channels) : T();
    a.y[i] = finish<kActivation>(a, a.y[i], addend, bias);
  }
}

template <Activation kActivation, typename T, typename Index>
void launch(const ConvEpilogue& e, cudaStream_t stream) {
  const bool in_packs = is_aligned(e.y) && is_aligned(e.z);
  const std::int64_t packs = in_packs ? e.count / kLanes<T> : 0;
  const std::int64_t steps = in_packs ? packs + 1 : e.count;
  epilogue_kernel<kActivation, T, Index><<<loop_blocks(steps), kThreads, 0, stream>>>(
      Arguments<T>{static_cast<T*>(e.y), static_cast<const T*>(e.z), static_cast<const T*>(e.b),
                   static_cast<Wide<T>>(e.alpha), static_cast<Wide<T>>(e.negative_slope)},
      static_cast<Index>(e.count), static_cast<Index>(packs), static_cast<Index>(e.channels),
      static_cast<Index>(e.channels_last ? 1 : e.plane));
}

template <Activation kActivation>
void launch(ElementType type, const ConvEpilogue& e, cudaStream_t stream) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    // Division is faster in 32 bits.
    if (e.count < std::int64_t{1} << 31) {
      launch<kActivation, T, std::uint32_t>(e, stream);
    } else {
      launch<kActivation, T, std::uint64_t>(e, stream);
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
