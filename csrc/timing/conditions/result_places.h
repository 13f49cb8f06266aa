#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/device_allocator.h"
#include "core/export.h"
#include "timing/callable.h"

namespace convtime {

/// Makes an allocator put the results of calls at addresses that were drawn at random beforehand.
///
/// An allocator that returns the smallest sufficient free block, like PyTorch's, puts a result into
/// a free block of exactly its size. So one block is reserved per placement, and freed only around
/// that placement's calls. Its neighbors stay allocated throughout, because adjacent free blocks
/// would be merged.
class CONVTIME_API ResultPlaces {
 public:
  ResultPlaces(DeviceAllocator allocate, std::size_t places, std::size_t max_bytes);

  /// Reserve one more block per block of a result at each placement, or at as many placements as
  /// max_bytes allows. Returns false if memory does not suffice for two.
  bool add(std::span<const MemoryBlock> result);

  /// Free the blocks of that placement, before a call.
  void open(std::size_t place);

  /// Allocate them again, after the call and after its result is dropped.
  void close(std::size_t place);

  /// Return whether the last open() freed a block at that address.
  bool was_kept(std::uintptr_t address) const;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::shared_ptr<void> held;
  };
  using Blocks = std::vector<Block>;

  void keep(std::span<const MemoryBlock> result, std::size_t places);
  void fill_segment_behind(const Block& block);
  std::size_t separator_bytes(std::size_t neighbor_bytes);
  Blocks& blocks_of(std::size_t place) { return blocks_[place % blocks_.size()]; }

  DeviceAllocator allocate_;
  std::size_t places_;
  std::size_t bytes_left_;
  std::mt19937_64 random_{std::random_device{}()};
  std::vector<Blocks> blocks_;
  std::vector<std::shared_ptr<void>> separators_;
  std::vector<std::uintptr_t> opened_;
};

}  // namespace convtime
