#pragma once

#include <cstdint>

// What the host and the kernels share.
namespace convtime::tutorial {

/// Sizes for a square window without dilation. Tensors are dense: (N, C, H, W) in memory, or (N, H,
/// W, C) if channels_last. Each has at most kMaxElements.
struct PoolSizes {
  int batch;
  int channels;
  int height;
  int width;
  int out_height;
  int out_width;
  int kernel;
  int stride;
  int padding;
  bool channels_last;

  bool operator==(const PoolSizes&) const = default;
};
static_assert(sizeof(PoolSizes) == 40);

/// The number of geometries that constant memory has room for.
constexpr int kKnownSizes = 256;

/// The outputs per block of kSharedMemory.
template <bool kChannelsLast>
struct Tile {
  static constexpr int kChannels = kChannelsLast ? 32 : 1;
  static constexpr int kRows = kChannelsLast ? 2 : 4;
  static constexpr int kColumns = kChannelsLast ? 2 : 32;

  /// Return the shared memory that it needs, at most kMaxSharedBytes.
  static constexpr std::int64_t bytes(std::int64_t kernel, std::int64_t stride,
                                      std::int64_t element_bytes) {
    return kChannels * ((kRows - 1) * stride + kernel) * ((kColumns - 1) * stride + kernel) *
           element_bytes;
  }
};

}  // namespace convtime::tutorial
