#include "kernels/relu_max_pool2d/choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <optional>
#include <string>

#include "kernels/elements.h"

namespace convtime::pool {
namespace {

using namespace elements;

/// Outputs below each other that share the loads of their windows, in the forward pass. Where that
/// is faster was fitted on the 240 forward passes of benchmarks/pool.py, on an H100 and an H200:
/// see prefers_strips.
constexpr int kStrip = 4;
/// Threads, if they have packs: fewer leave multiprocessors idle. Fitted on the same passes.
constexpr std::int64_t kLeastPacks = 1 << 14;
/// The same for the backward pass, and threads if they have strips of kStrip elements.
constexpr std::int64_t kLeastBackwardPacks = 1 << 16;
constexpr std::int64_t kLeastBackwardStrips = 1 << 17;

std::int64_t window_size(const PoolGeometry& g) { return std::int64_t{g.h.kernel} * g.w.kernel; }

WinnerType winner_type(const PoolGeometry& g) {
  return winners_are_bytes(window_size(g)) ? WinnerType::kByte : WinnerType::kWord;
}

/// Return whether int can hold each position in a window, and each coordinate beyond the edges that
/// a window reaches.
bool windows_fit_32_bits(const PoolGeometry& g) {
  const auto fits = [](const PoolAxis& axis) {
    return axis.input + 2 * std::int64_t{axis.padding} + axis.stride +
               std::int64_t{axis.dilation} * axis.kernel <
           kMax32;
  };
  return fits(g.h) && fits(g.w) && window_size(g) < kMax32;
}

/// Return whether int can hold each index of a plane's elements, or of an image's if channels are
/// last.
bool planes_fit_32_bits(const PoolGeometry& g) {
  const std::int64_t elements =
      std::max(g.h.input * g.w.input, g.h.output * g.w.output) * (g.channels_last ? g.channels : 1);
  // Indices of the last block's threads exceed the end.
  return elements + kThreads < kMax32 && windows_fit_32_bits(g);
}

Axis axis_of(const PoolAxis& axis) {
  return {static_cast<int>(axis.input),
          static_cast<int>(axis.output),
          axis.kernel,
          axis.stride,
          axis.padding,
          axis.dilation};
}

/// Return a problem of threads that have one pack each.
Problem problem_of(const PoolGeometry& g, int pack = 1) {
  return {.h = axis_of(g.h),
          .w = axis_of(g.w),
          .channels = g.channels_last ? static_cast<int>(g.channels / pack) : 1,
          .pack = pack,
          .rows = 1,
          .columns = 1,
          .band = 1,
          .vector = 1};
}

/// Return whether a thread can hold all elements or windows of a group.
bool is_small(const PoolAxis& axis) {
  return (axis.kernel == 2 || axis.kernel == 3) && axis.stride <= 2 && axis.dilation == 1;
}

/// Return a kernel whose threads have a vector of 16 bytes: of channels, or of rows with half as
/// many outputs.
std::optional<Choice> choose_vectors(Family planes, Family pixels, ElementType type,
                                     WinnerType winner, const PoolGeometry& g, int aligned) {
  const int lanes = lanes_of(type);
  const bool fits = g.channels_last ? g.channels % lanes == 0
                                    : g.w.stride == 2 && g.w.padding == g.w.kernel - 2 &&
                                          g.w.output * 2 == g.w.input && g.w.input % lanes == 0;
  if (!fits || aligned < lanes || !is_small(g.h) || !is_small(g.w) || !windows_fit_32_bits(g)) {
    return std::nullopt;
  }
  // Work per thread: the fastest in timings on an H200, in the backward pass in 16 bits, or one
  // within 1 % of the fastest.
  Choice choice{g.channels_last ? pixels : planes, type, winner, problem_of(g, lanes)};
  const bool has_winners = winner != WinnerType::kNone;
  if (choice.family == planes) {
    choice.problem.rows = g.h.kernel == 3 && has_winners ? 2 : 1;
  } else if (choice.family == Family::kForwardPixels) {
    choice.problem.columns = g.w.kernel == 2 ? 1 : has_winners ? 2 : 4;
    // Rows that two threads of a band read hit in L1.
    choice.problem.band = g.h.kernel == 3 && has_winners ? 4 : 8;
  }
  return threads_of_plane(choice) + kThreads < kMax32 ? std::optional(choice) : std::nullopt;
}

/// Return the largest pack of channels, up to 16 bytes of elements and of winners, that tensors
/// allow and that leaves enough threads for so many elements.
int pack_of(ElementType type, WinnerType winner, const PoolGeometry& g, int aligned,
            std::int64_t elements, std::int64_t least) {
  if (!g.channels_last) {
    return 1;
  }
  int pack = std::min({lanes_of(type), aligned, winner == WinnerType::kWord ? 4 : 16});
  while (pack > 1 && (g.channels % pack != 0 || elements / pack < least)) {
    pack /= 2;
  }
  return pack;
}

/// Return whether threads should have strips: where these read so much less that it is worth more
/// than the registers that they need, and threads suffice. Strips at a plane's end may have fewer
/// outputs, but take as long.
bool prefers_strips(const PoolGeometry& g, std::int64_t packs) {
  const Axis h = axis_of(g.h);
  const std::int64_t step = h.step();
  const std::int64_t rows = h.kernel + std::int64_t{kStrip - 1} * h.shift();  // of their windows
  const std::int64_t strips = ceil_div(h.output, step * kStrip) * step;       // in a column
  const std::int64_t least_threads = g.channels_last ? 1 << 15 : 1 << 16;
  return kStrip * step <= h.output && window_size(g) > 4 &&
         20 * strips * rows <= 13 * g.h.output * h.kernel && packs / kStrip >= least_threads;
}

/// Return the elements of a row that planes' threads load at once so that they need the fewest
/// loads. Vectors begin at multiples of their size in the row, at the same lane of each window.
int vector_of(ElementType type, const Problem& p, int aligned) {
  const int span = p.w.kernel + (p.columns - 1) * p.w.stride;
  int best = 1;
  int fewest = span;
  for (int size = 2; size <= std::min(aligned, lanes_of(type)); size *= 2) {
    const int before = (size - p.w.padding % size) % size;
    const int loads = static_cast<int>(ceil_div(before + span, size));
    if (p.w.input % size == 0 && p.columns * p.w.stride % size == 0 && loads < fewest) {
      best = size;
      fewest = loads;
    }
  }
  return best;
}

Choice choose_forward_strips(ElementType type, WinnerType winner, const PoolGeometry& g,
                             int aligned) {
  const bool has_winners = winner != WinnerType::kNone;
  const int bytes = static_cast<int>(bytes_of(type));
  std::int64_t packs = g.batch * g.channels * g.h.output * g.w.output;
  Problem p = problem_of(g, pack_of(type, winner, g, aligned, packs, kLeastPacks));
  packs /= p.pack;
  if (p.channels * p.pack == 1 && p.w.dilation == 1) {
    // Windows beside each other that share most of their columns
    const bool overlap =
        p.w.stride <= 2 ? p.w.kernel > p.w.stride : p.w.kernel >= 2 * std::int64_t{p.w.stride};
    if (!has_winners && overlap && fits_registers(p.w.kernel + p.w.stride, bytes)) {
      p.columns = 2;
      packs /= 2;
    }
    if (fits_registers(p.w.kernel + (p.columns - 1) * p.w.stride, bytes)) {
      p.vector = vector_of(type, p, aligned);
    }
  }
  // Strips of packs with winners would need too many registers.
  if ((p.pack == 1 || !has_winners) && prefers_strips(g, packs)) {
    p.rows = kStrip;
  }
  return {Family::kForwardStrips, type, winner, p};
}

/// A kernel and the header that defines it.
struct Template {
  const char* name;
  const char* header;
};

/// In the order of families.
constexpr Template kTemplates[] = {{"forward_planes", "forward"},   {"forward_pixels", "forward"},
                                   {"forward_strips", "forward"},   {"indices", "forward"},
                                   {"backward_planes", "backward"}, {"backward_pixels", "backward"},
                                   {"backward_strips", "backward"}, {"backward_tiles", "backward"}};

}  // namespace

std::int64_t threads_of_plane(const Choice& choice) {
  const Problem& p = choice.problem;
  const Tasks tasks = tasks_of(choice.family, p);
  return std::int64_t{tasks.rows} * tasks.columns * p.band * p.channels;
}

std::optional<Choice> choose_forward(ElementType type, const PoolGeometry& g, bool has_winners,
                                     int aligned) {
  const WinnerType winner = has_winners ? winner_type(g) : WinnerType::kNone;
  const bool is_narrow = g.channels_last && g.w.kernel == 2 && g.w.stride == 1;
  const auto vectors =
      choose_vectors(Family::kForwardPlanes, Family::kForwardPixels, type, winner, g, aligned);
  if (vectors && (!is_narrow || bytes_of(type) == 2)) {
    return vectors;
  }
  return planes_fit_32_bits(g) ? std::optional(choose_forward_strips(type, winner, g, aligned))
                               : std::nullopt;
}

std::optional<Choice> choose_backward(ElementType type, const PoolGeometry& g, int aligned) {
  const WinnerType winner = winner_type(g);
  if (const auto vectors = choose_vectors(Family::kBackwardPlanes, Family::kBackwardPixels, type,
                                          winner, g, aligned)) {
    return vectors;
  }
  if (!planes_fit_32_bits(g)) {
    return std::nullopt;
  }
  if (!g.channels_last && is_small(g.h) && is_small(g.w)) {
    return without_sizes({Family::kBackwardTiles, type, winner, problem_of(g)});
  }
  const std::int64_t inputs = g.batch * g.channels * g.h.input * g.w.input;
  Problem p = problem_of(g, pack_of(type, winner, g, aligned, inputs, kLeastBackwardPacks));
  p.rows = inputs / p.pack / kStrip >= kLeastBackwardStrips ? kStrip : 1;
  return Choice{Family::kBackwardStrips, type, winner, p};
}

std::optional<Choice> choose_indices(const PoolGeometry& g) {
  if (!planes_fit_32_bits(g)) {
    return std::nullopt;
  }
  return Choice{Family::kIndices, ElementType::kFloat, winner_type(g), problem_of(g)};
}

Choice without_sizes(const Choice& choice) {
  Choice result = choice;
  for (Axis* const axis : {&result.problem.h, &result.problem.w}) {
    axis->input = 0;
    axis->output = 0;
  }
  return result;
}

ProgramSource source_of(const Choice& choice) {
  const auto [name, header] = kTemplates[static_cast<std::size_t>(choice.family)];
  std::string kernel = std::string("convtime::pool::") + name + '<';
  if (choice.family != Family::kIndices) {
    kernel += name_of(choice.type) + ", ";
  }
  constexpr std::array kWinners = {"void", "std::uint8_t", "std::uint32_t"};
  kernel += kWinners[static_cast<std::size_t>(choice.winner)];
  kernel += ", convtime::pool::Problem{";
  using Numbers = std::array<int, sizeof(Problem) / sizeof(int)>;
  for (const int number : std::bit_cast<Numbers>(choice.problem)) {
    kernel += std::to_string(number) + ',';
  }
  kernel.back() = '}';
  return {std::string("kernels/relu_max_pool2d/") + header + ".cuh", {kernel + '>'}};
}

}  // namespace convtime::pool
