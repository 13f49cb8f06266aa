#pragma once

#include <bit>
#include <cstdint>
#include <numeric>

#include "kernels/relu_max_pool2d/pool_elements.cuh"

namespace convtime::pool {

/// Division by a number that is known when the kernel is launched, of numbers below 2^31.
class Division {
 public:
  explicit Division(std::int64_t divisor)
      : divisor_(static_cast<unsigned>(divisor)),
        shift_(static_cast<unsigned>(std::bit_width(divisor_ - 1))),
        factor_(static_cast<unsigned>(
            (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - divisor_) / divisor_ + 1)) {}

  __host__ __device__ int divisor() const { return static_cast<int>(divisor_); }

  __device__ int quotient(int number) const {
    const auto n = static_cast<unsigned>(number);
    return static_cast<int>((__umulhi(n, factor_) + n) >> shift_);
  }

  /// Return the quotient, and set the number to the remainder.
  __device__ int split(int& number) const {
    const int result = quotient(number);
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
  __host__ __device__ int size() const { return end - first; }
};

/// The outputs whose windows have an element at one position of the input: from the first, in equal
/// steps, to before the end. `element` is the first window's element at that position.
struct Covering {
  int first;
  int end;
  int element;
};

/// Windows along one spatial dimension.
struct Windows {
  int input;
  int output;
  int kernel;
  Division stride;
  int padding;
  Division dilation;

  explicit Windows(const PoolAxis& axis)
      : input(static_cast<int>(axis.input)),
        output(static_cast<int>(axis.output)),
        kernel(axis.kernel),
        stride(axis.stride),
        padding(axis.padding),
        dilation(axis.dilation) {}

  /// Return the first position of an output's window, which may be in the padding.
  __device__ int start(int output) const { return output * stride.divisor() - padding; }

  /// Return which elements of the window that starts there are in the input.
  __device__ Range elements(int start) const { return elements(start, kernel); }

  /// Return which of so many elements are in the input. The first one is at `start`.
  __device__ Range elements(int start, int count) const {
    if (dilation.divisor() == 1) {  // as most are
      const int first = max(0, -start);
      return {first, max(first, min(count, input - start))};
    }
    const int first = start < 0 ? dilation.quotient(dilation.divisor() - 1 - start) : 0;
    const int end = start < input ? min(count, dilation.quotient(input - 1 - start) + 1) : 0;
    return {first, max(first, end)};
  }

  /// Return the positions in the input between the first and last element of outputs' windows.
  __device__ Range inputs(Range outputs) const {
    const int reach = (kernel - 1) * dilation.divisor() + 1;
    const int first = clamp(start(outputs.first), input);
    return {first, max(first, min(input, start(outputs.end - 1) + reach))};
  }

  /// Return the outputs whose windows may have elements at positions in a range of the input.
  __device__ Range outputs(Range inputs) const {
    const int reach = (kernel - 1) * dilation.divisor();
    const int before = inputs.first + padding - reach;
    const int first = before > 0 ? stride.quotient(before + stride.divisor() - 1) : 0;
    const int end = min(output, stride.quotient(inputs.end - 1 + padding) + 1);
    return {first, max(first, end)};
  }

  /// From one output of a Covering to the next, and from an element to the next.
  struct Steps {
    int output;
    int element;
  };
  Steps steps() const {
    const int common = std::gcd(stride.divisor(), dilation.divisor());
    return {dilation.divisor() / common, stride.divisor() / common};
  }

  __device__ Covering covering(int position, const Steps& steps) const {
    const Range range = outputs({position, position + 1});
    for (int output = range.first; output < min(range.end, range.first + steps.output); ++output) {
      const int distance = position - start(output);
      const int element = dilation.quotient(distance);
      if (element * dilation.divisor() == distance) {
        return {output, range.end, element};
      }
    }
    return {0, 0, 0};
  }
};

}  // namespace convtime::pool
