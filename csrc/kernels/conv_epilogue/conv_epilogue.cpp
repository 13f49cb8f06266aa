#include "kernels/conv_epilogue/conv_epilogue.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/conv_epilogue/constants.h"
#include "kernels/elements.h"
#include "program/program.h"

namespace convtime {
namespace {

using namespace elements;
using namespace epilogue;

struct Key {
  std::string_view kernel;
  ElementType type;
  Constants constants;

  auto operator<=>(const Key&) const = default;
};

struct Launch {
  Key key;
  Arguments arguments;
  unsigned blocks;
  unsigned threads;
};

std::int64_t tiles(std::int64_t count, std::int64_t side) { return (count + side - 1) / side; }

/// Return whether 32 bits hold an index of so many elements, and the number of threads more:
/// division is faster in these.
bool has_64_bits(std::int64_t count) { return count >= std::int64_t{1} << 31; }

Launch launch_of(std::string_view kernel, ElementType type, const ConvEpilogue& e,
                 const void* from) {
  const Constants constants{.activation = e.activation,
                            .has_z = e.z != nullptr,
                            .has_b = e.b != nullptr,
                            .in_packs = is_aligned(from) && is_aligned(e.z),
                            .to_planes = false,
                            .has_64_bits = has_64_bits(e.count),
                            .pack_bias = PackBias::kAny,
                            .log_tile = 0,
                            .channels = e.channels,
                            .pitch = e.channels,
                            .plane = e.channels_last ? 1 : e.plane};
  const Arguments arguments{.y = e.y,
                            .from = from,
                            .z = e.z,
                            .b = e.b,
                            .alpha = e.alpha,
                            .negative_slope = e.negative_slope,
                            .alpha32 = static_cast<float>(e.alpha),
                            .negative_slope32 = static_cast<float>(e.negative_slope),
                            .count = e.count,
                            .images = e.count / e.plane / e.channels,
                            .plane = constants.plane};
  return {{kernel, type, constants}, arguments, 0, kThreads};
}

/// Return what packs of planes have for biases.
PackBias bias_of_planes(const Constants& c, int lanes) {
  return !c.has_b               ? PackBias::kAny
         : c.plane % lanes == 0 ? PackBias::kOne
         : c.plane >= lanes     ? PackBias::kTwo
                                : PackBias::kAny;
}

PackBias bias_of_channels(const Constants& c, const void* b) {
  return c.has_b && is_aligned(b) ? PackBias::kPack : PackBias::kAny;
}

Launch in_place(ElementType type, const ConvEpilogue& e) {
  Launch launch = launch_of("epilogue_kernel", type, e, e.y);
  Constants& c = launch.key.constants;
  const int lanes = lanes_of(type);
  if (!c.has_b) {
    c.channels = c.plane = 1;
  }
  c.pitch = 0;
  c.pack_bias = !e.channels_last          ? bias_of_planes(c, lanes)
                : e.channels % lanes == 0 ? bias_of_channels(c, e.b)
                                          : PackBias::kAny;
  launch.blocks = loop_blocks(c.in_packs ? std::max<std::int64_t>(e.count / lanes, 1) : e.count);
  return launch;
}

Launch unpadding(ElementType type, const void* from, std::int64_t pitch, const ConvEpilogue& e) {
  Launch launch = launch_of("unpadding_kernel", type, e, from);
  Constants& c = launch.key.constants;
  c.pitch = pitch;
  c.has_64_bits = has_64_bits(e.count / e.channels * pitch);
  c.pack_bias = bias_of_channels(c, e.b);
  launch.blocks = static_cast<unsigned>(tiles(e.count, std::int64_t{kThreads} * lanes_of(type)));
  return launch;
}

/// Return the logarithm of the number of planes in a tile of transposing_planes_kernel, or none if
/// it does not take such images or would read and write less than 32 bytes of a pixel at once.
std::optional<int> log_planes_in_tile(ElementType type, const ConvEpilogue& e, bool in_packs) {
  constexpr std::int64_t kMost = 128;
  const std::int64_t least = 32 / bytes_of(type);
  const std::int64_t planes = std::min({kMost, kTileBytes / bytes_of(type) / e.plane, e.channels});
  if (planes < least || e.channels * e.plane % lanes_of(type) != 0 || !in_packs) {
    return std::nullopt;
  }
  return std::bit_width(static_cast<std::uint64_t>(planes)) - 1;
}

/// Return the logarithm of the rows of a tile of so many elements whose sides are about equal,
/// unless the matrix is narrower on one side.
int log_rows_of_tile(std::int64_t elements, std::int64_t rows, std::int64_t columns) {
  const int log_elements = std::countr_zero(static_cast<std::uint64_t>(elements));
  const auto log_side = [&](std::int64_t side) {
    return std::min(log_elements / 2, static_cast<int>(std::bit_width(std::uint64_t(side - 1))));
  };
  const bool is_narrow = log_side(columns) < log_elements / 2;
  return is_narrow ? log_elements - log_side(columns) : log_side(rows);
}

/// Transpose to channels-last layout or, if to_planes, from it. Its pixels are `channel_pitch`
/// apart.
Launch transposing(ElementType type, const void* from, bool to_planes, std::int64_t channel_pitch,
                   const ConvEpilogue& e) {
  Launch launch = launch_of("transposing_squares_kernel", type, e, from);
  Constants& c = launch.key.constants;
  const std::int64_t images = launch.arguments.images;
  const std::int64_t rows = to_planes ? e.plane : e.channels;
  const std::int64_t columns = to_planes ? e.channels : e.plane;
  const std::int64_t pitch = to_planes ? channel_pitch : e.plane;
  const std::int64_t lanes = lanes_of(type);
  const bool in_packs = c.in_packs && is_aligned(e.y);
  c.in_packs = true;
  c.to_planes = to_planes;
  c.has_64_bits = has_64_bits(images * e.plane * channel_pitch);
  c.pitch = channel_pitch;
  // Squares leave at most three quarters of their threads without work.
  if (rows % lanes == 0 && pitch % lanes == 0 && 2 * rows >= kRowPacks * lanes &&
      2 * columns >= kColumnPacks * lanes && in_packs) {
    c.pack_bias = bias_of_channels(c, e.b);
    const std::int64_t squares =
        images * tiles(rows, kRowPacks * lanes) * tiles(columns, kColumnPacks * lanes);
    launch.blocks = static_cast<unsigned>(tiles(squares, kThreads / 32));
    return launch;
  }
  launch.threads = kTileThreads;
  if (const std::optional<int> log_planes = log_planes_in_tile(type, e, in_packs)) {
    launch.key.kernel = "transposing_planes_kernel";
    c.log_tile = *log_planes;
    c.pack_bias = bias_of_planes(c, lanes_of(type));
    launch.blocks =
        static_cast<unsigned>(images * tiles(e.channels, std::int64_t{1} << *log_planes));
    return launch;
  }
  launch.key.kernel = "transposing_tiles_kernel";
  const std::int64_t elements = kTileBytes / bytes_of(type);
  c.log_tile = log_rows_of_tile(elements, rows, columns);
  launch.blocks = static_cast<unsigned>(images * tiles(rows, std::int64_t{1} << c.log_tile) *
                                        tiles(columns, elements >> c.log_tile));
  return launch;
}

Launch from_channels_last(ElementType type, const void* from, std::int64_t pitch,
                          const ConvEpilogue& e) {
  return e.channels_last ? unpadding(type, from, pitch, e)
                         : transposing(type, from, /*to_planes=*/true, pitch, e);
}

Launch to_channels_last(ElementType type, const void* from, void* to, std::int64_t batch,
                        std::int64_t channels, std::int64_t plane) {
  return transposing(type, from, /*to_planes=*/false, /*channel_pitch=*/channels,
                     {.y = to,
                      .z = nullptr,
                      .b = nullptr,
                      .alpha = 0,
                      .activation = Activation::kIdentity,
                      .negative_slope = 0,
                      .count = batch * channels * plane,
                      .channels = channels,
                      .plane = plane,
                      .channels_last = false});
}

std::string text(auto value) { return std::to_string(static_cast<std::int64_t>(value)); }

ProgramSource source_of(const Key& key) {
  const Constants& c = key.constants;
  const std::string scope = "convtime::epilogue::";
  return {.header = "kernels/conv_epilogue/conv_epilogue.cuh",
          .names = {scope + std::string(key.kernel) + "<" + name_of(key.type) + ", " + scope +
                    "Constants{convtime::Activation(" + text(c.activation) + "), " + text(c.has_z) +
                    ", " + text(c.has_b) + ", " + text(c.in_packs) + ", " + text(c.to_planes) +
                    ", " + text(c.has_64_bits) + ", " + scope + "PackBias(" + text(c.pack_bias) +
                    "), " + text(c.log_tile) + ", " + text(c.channels) + ", " + text(c.pitch) +
                    ", " + text(c.plane) + "}>"}};
}

/// Return the key of the kernel for any plane size.
Key for_any_plane(Key key) {
  key.constants.plane = 0;
  return key;
}

std::vector<ProgramSource> sources_of(const Key& key) {
  std::vector<ProgramSource> sources{source_of(key)};
  if (key.constants.plane > 1) {
    sources.push_back(source_of(for_any_plane(key)));
  }
  return sources;
}

/// Return the program for a key that is new.
ProgramSource admitted_source(const Key& key) {
  const Key any_plane = for_any_plane(key);
  // One element is also how channels-last layout is described.
  if (key.constants.plane <= 1) {
    return source_of(key);
  }
  static auto* const planes = new KnownSizes<Key, std::int64_t>;
  Key others = any_plane;
  others.constants.log_tile = 0;  // these two follow from the plane
  others.constants.pack_bias = PackBias::kAny;
  return source_of(planes->admit(others, key.constants.plane) ? key : any_plane);
}

void start(const Launch& launch, cudaStream_t stream) {
  static auto* const kernels = new KernelTable<Key>;
  kernels->get(launch.key, admitted_source)
      .launch(launch.blocks, launch.threads, 0, stream, launch.arguments);
}

}  // namespace

void launch_conv_epilogue(ElementType type, const ConvEpilogue& e, cudaStream_t stream) {
  if (e.count > 0) {
    start(in_place(type, e), stream);
  }
}

void launch_conv_epilogue_from_channels_last(ElementType type, const void* from, std::int64_t pitch,
                                             const ConvEpilogue& e, cudaStream_t stream) {
  if (e.count > 0) {
    start(from_channels_last(type, from, pitch, e), stream);
  }
}

void launch_to_channels_last(ElementType type, const void* from, void* to, std::int64_t batch,
                             std::int64_t channels, std::int64_t plane, cudaStream_t stream) {
  if (batch * channels * plane > 0) {
    start(to_channels_last(type, from, to, batch, channels, plane), stream);
  }
}

std::vector<ProgramSource> conv_epilogue_sources(ElementType type, const ConvEpilogue& e) {
  return sources_of(in_place(type, e).key);
}

std::vector<ProgramSource> conv_epilogue_from_channels_last_sources(ElementType type,
                                                                    const void* from,
                                                                    std::int64_t pitch,
                                                                    const ConvEpilogue& e) {
  return sources_of(from_channels_last(type, from, pitch, e).key);
}

std::vector<ProgramSource> to_channels_last_sources(ElementType type, const void* from, void* to,
                                                    std::int64_t batch, std::int64_t channels,
                                                    std::int64_t plane) {
  return sources_of(to_channels_last(type, from, to, batch, channels, plane).key);
}

}  // namespace convtime
