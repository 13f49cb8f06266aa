#pragma once

#include <compare>
#include <cstdint>

#include "core/activation.h"

// What the host and the kernels of an epilogue share.
namespace convtime::epilogue {

/// The biases of a pack, which is 16 bytes of adjacent elements.
enum class PackBias : std::int32_t {
  kAny,   ///< of any number of channels
  kTwo,   ///< of at most two channels
  kOne,   ///< of one channel
  kPack,  ///< an aligned pack, too; or parts of one
};

/// What a kernel is compiled for.
struct Constants {
  Activation activation;
  bool has_z;
  bool has_b;
  bool in_packs;     ///< what is read and written is aligned as packs are
  bool to_planes;    ///< a transposition is from channels-last layout, not to it
  bool has_64_bits;  ///< 32 bits do not hold every index
  PackBias pack_bias;
  std::int32_t log_tile;  ///< logarithm of a tile's planes, or of its rows
  std::int64_t channels;
  std::int64_t pitch;  ///< elements from pixel to pixel in channels-last layout
  std::int64_t plane;  ///< adjacent elements of a channel; 0 if it is an argument

  auto operator<=>(const Constants&) const = default;
};

/// What a kernel is launched with.
struct Arguments {
  void* y;
  const void* from;
  const void* z;
  const void* b;
  double alpha;
  double negative_slope;
  float alpha32;  ///< rounded, as the sums of all types but double
  float negative_slope32;
  std::int64_t count;   ///< elements of y
  std::int64_t images;  ///< to transpose
  std::int64_t plane;
};
static_assert(sizeof(Arguments) == 80);

/// Threads for a tile. A thread loads all of its elements at once: 16 in 32 bits.
constexpr unsigned kTileThreads = 256;
constexpr unsigned kTileBytes = 16384;

/// Packs that the threads of a warp have next to each other when they transpose squares: they read
/// lines of 128 bytes, and write lines of 64 bytes.
constexpr unsigned kColumnPacks = 8;
constexpr unsigned kRowPacks = 4;

}  // namespace convtime::epilogue
