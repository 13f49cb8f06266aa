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

/// Has an allocator put the results of calls at places that were drawn at random beforehand.
///
/// An allocator that gives the smallest free block that is large enough, as PyTorch's does, puts a
/// result where a block of just its size is free. So there is a block for each place, held except
/// around that place's calls. Neighbours of each are held throughout, or free ones would be joined.
class CONVTIME_API ResultPlaces {
 public:
  ResultPlaces(DeviceAllocator allocate, std::size_t places, std::size_t max_bytes);

  /// Keeps another block for each of a result's at each place, or at as many as max_bytes allow.
  /// False where there is no memory for two.
  bool add(std::span<const MemoryBlock> result);

  /// Before a call at that place: lets go of its blocks.
  void open(std::size_t place);

  /// After it, and when its result is dropped: takes them again.
  void close(std::size_t place);

  /// Whether the blocks let go of by the last open() include one at that address.
  bool was_kept(std::uintptr_t address) const;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::shared_ptr<void> held;
  };
  using Blocks = std::vector<Block>;

  void keep(std::span<const MemoryBlock> result, std::size_t places);
  void fill_segment_behind(const Block& block);
  std::size_t separator_bytes(std::size_t neighbour_bytes);
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
