#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

// What the host and device code of the pooling kernels share.
namespace convtime::pool {

constexpr std::int64_t kMax32 = 0x7fffffff;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Return the quotient of numbers that are not negative.
constexpr int quotient(int number, int divisor) {
  return static_cast<int>(static_cast<unsigned>(number) / static_cast<unsigned>(divisor));
}

/// Division by a number that is known when the kernel is launched, of numbers below 2^31.
class Division {
 public:
  Division() = default;
  explicit Division(std::int64_t divisor)
      : divisor_(static_cast<unsigned>(divisor)),
        shift_(static_cast<unsigned>(std::bit_width(divisor_ - 1))),
        factor_(static_cast<unsigned>(
            (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - divisor_) / divisor_ + 1)) {}

  int divisor() const { return static_cast<int>(divisor_); }

  /// Return the quotient, and set the number to the remainder.
  int split(int& number) const {
    const auto n = static_cast<unsigned>(number);
    const auto high = static_cast<unsigned>(std::uint64_t{n} * factor_ >> 32);
    const int result = static_cast<int>((high + n) >> shift_);
    number -= result * divisor();
    return result;
  }

 private:
  unsigned divisor_;
  unsigned shift_;
  unsigned factor_;
};

/// From the first to before the end.
struct Range {
  int first;
  int end;
  int size() const { return end - first; }
};

/// The outputs whose windows have an element at one position of the input: from the first, in equal
/// steps, to before the end. `element` is the first window's element at that position.
struct Covering {
  int first;
  int end;
  int element;
};

/// Windows along one spatial dimension.
struct Axis {
  int input;  ///< zero, like the output, in the constants of kernels for images of any size
  int output;
  int kernel;
  int stride;
  int padding;
  int dilation;

  constexpr bool has_size() const { return input > 0; }

  /// Return how many outputs lie between two whose windows have elements at the same positions, and
  /// how many elements their windows are then apart.
  constexpr int step() const { return dilation / std::gcd(stride, dilation); }
  constexpr int shift() const { return stride / std::gcd(stride, dilation); }

  /// Return how many windows can have an element at the same position.
  constexpr int coverings() const { return static_cast<int>(ceil_div(kernel, shift())); }

  /// Return the first position of an output's window, which may be in the padding.
  constexpr int start(int output) const { return output * stride - padding; }

  /// Return whether the element of a window may be before the input.
  constexpr bool may_precede(int element) const { return element * dilation < padding; }

  /// Return whether the element of a window of the first outputs may be after the input. It may if
  /// their number is zero, which means that it is not known.
  constexpr bool may_exceed(int element, int outputs) const {
    return outputs == 0 ||
           (outputs - std::int64_t{1}) * stride - padding + std::int64_t{element} * dilation >=
               input;
  }

  /// Return whether a window may have no element in the input.
  constexpr bool may_be_empty() const {
    return dilation > 1 && padding > 0 && (!has_size() || input < dilation);
  }

  /// Return which of so many elements are in the input. The first one is at `start`.
  Range elements(int start, int count) const {
    const int first = start < 0 ? quotient(dilation - 1 - start, dilation) : 0;
    const int end = start < input ? std::min(count, quotient(input - 1 - start, dilation) + 1) : 0;
    return {first, std::max(first, end)};
  }

  /// Return the outputs whose windows may have elements at positions in a range of the input.
  Range outputs(Range inputs) const {
    const int before = inputs.first + padding - (kernel - 1) * dilation;
    const int first = before > 0 ? quotient(before + stride - 1, stride) : 0;
    const int end = std::min(output, quotient(inputs.end - 1 + padding, stride) + 1);
    return {first, std::max(first, end)};
  }

  Covering covering(int position) const {
    const Range range = outputs({position, position + 1});
    for (int output = range.first; output < std::min(range.end, range.first + step()); ++output) {
      const int distance = position - start(output);
      const int element = quotient(distance, dilation);
      if (element * dilation == distance) {
        return {output, range.end, element};
      }
    }
    return {0, 0, 0};
  }
};

/// The constants that a kernel is compiled for.
struct Problem {
  Axis h;
  Axis w;
  int channels;  ///< packs of a pixel, if channels are last, otherwise 1
  int pack;      ///< adjacent elements that a thread reads or writes at once
  int rows;      ///< of a thread
  int columns;   ///< of a thread, beside each other
  int band;      ///< of threads below each other whose numbers are close
  int vector;    ///< elements of a row that the strips of planes load at once

  constexpr bool has_sizes() const { return h.has_size(); }
};

/// A template of kernels. Threads of the first three have outputs, threads of the next have
/// elements of the input's gradient.
enum class Family : int {
  kForwardPlanes,
  kForwardPixels,
  kForwardStrips,
  kIndices,
  kBackwardPlanes,
  kBackwardPixels,
  kBackwardStrips,
  kBackwardTiles
};

/// How a plane is divided among threads, apart from bands and channels. An image counts as one
/// plane if channels are last.
struct Tasks {
  int rows;
  int columns;
};

/// Return the tasks of a problem with sizes.
constexpr Tasks tasks_of(Family family, const Problem& p) {
  const auto divide = [](std::int64_t rows, std::int64_t of_thread, std::int64_t columns,
                         std::int64_t beside) {
    return Tasks{static_cast<int>(ceil_div(rows, of_thread)),
                 static_cast<int>(ceil_div(columns, beside))};
  };
  const std::int64_t band_rows = std::int64_t{p.band} * p.rows;
  switch (family) {
    case Family::kForwardPlanes:
      return divide(p.h.output, p.rows, p.w.input, p.pack);
    case Family::kForwardStrips: {
      const int phases = p.rows > 1 ? p.h.step() : 1;
      const Tasks tasks = divide(p.h.output, std::int64_t{phases} * p.rows, p.w.output, p.columns);
      return {tasks.rows * phases, tasks.columns};
    }
    case Family::kBackwardPlanes:
      return divide(p.h.input, std::int64_t{p.h.stride} * p.rows, p.w.input, p.pack);
    case Family::kBackwardPixels:
      return divide(p.h.input, p.h.stride, p.w.input, p.w.stride);
    case Family::kBackwardStrips:
      return divide(p.h.input, p.rows, p.w.input, 1);
    default:
      return divide(p.h.output, band_rows, p.w.output, p.columns);
  }
}

/// Return how many outputs lie up to the last one that is the first of a thread; zero if sizes are
/// not known.
constexpr Tasks first_outputs(Family family, const Problem& p) {
  if (!p.has_sizes()) {
    return {0, 0};
  }
  const Tasks tasks = tasks_of(family, p);
  const int phases = p.rows > 1 ? p.h.step() : 1;
  return {((tasks.rows * p.band / phases - 1) * p.rows + 1) * phases,
          (tasks.columns - 1) * p.columns + 1};
}

/// Return whether threads load so many packs of a row into registers before they use them.
constexpr bool fits_registers(int packs, int pack_bytes) {
  return packs <= 32 / std::max(1, pack_bytes / 4);
}

/// Sizes along an axis.
struct Size {
  int input;
  int output;
};

/// The parameter of most kernels. Gradients and winners are read in the backward pass.
struct Call {
  const void* from;
  void* to;
  void* winners;
  int threads;
  Division rows;  // of tasks
  Division columns;
  Size h;
  Size w;
};

/// How a source is stored in shared memory.
struct SourceShape {
  int is_contiguous;  // in memory: whole rows, of one or more planes
  int pitch;          // from one row to the next
  Division vectors;   // of 16 bytes, per row, or in all if contiguous
};

/// How a tensor is divided among blocks.
struct Tiling {
  std::int64_t planes;
  int planes_per_block;
  Division rows;  // of a tile
  Division row_tiles;
  int columns;  // of a tile
  Division column_tiles;
};

/// Rows of a tile's thread.
constexpr int kTileStrip = 4;
constexpr int kMaxTileThreads = 256;

/// The parameter of the kernels that have tiles.
struct TileCall {
  const void* grad_output;
  const void* winners;
  void* grad_input;
  Tiling tiling;
  Size h;
  Size w;
  SourceShape gradients;
  SourceShape won;
  int gradient_bytes;
  Division strips;  // of a tile's rows
  Division groups;  // of columns
};

}  // namespace convtime::pool
