#include "timing/conditions/result_places.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace convtime {
namespace {

constexpr std::size_t kGranule = 512;  // bytes; granularity of PyTorch's allocator
/// PyTorch's allocator takes blocks up to this size from one pool, larger ones from another.
constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxSmallSeparator = std::size_t{64} << 10;
/// It cuts the small blocks from segments of this size.
constexpr std::size_t kSmallSegment = std::size_t{2} << 20;
constexpr std::size_t kMaxLargeSeparator = kSmallBytes + (std::size_t{2} << 20);

/// Return whether few blocks of this size fit in a segment, which would put most at the start of a
/// segment.
bool fills_a_segment(std::size_t bytes) {
  return kMaxSmallSeparator < bytes && bytes <= kSmallBytes;
}

std::size_t max_separator_bytes(std::size_t neighbor_bytes) {
  if (neighbor_bytes > kSmallBytes) {
    return kMaxLargeSeparator;
  }
  return fills_a_segment(neighbor_bytes) ? kSmallBytes : kMaxSmallSeparator;
}

std::size_t rounded(std::size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

/// Return the maximum bytes of a placement, for blocks from the pool for large blocks, or from both
/// pools.
std::size_t bytes_of_place(std::span<const MemoryBlock> result, bool large_alone) {
  std::size_t bytes = 0;
  for (const MemoryBlock& block : result) {
    if (!large_alone || block.bytes > kSmallBytes) {
      bytes += fills_a_segment(block.bytes)
                   ? kSmallSegment
                   : rounded(block.bytes) + max_separator_bytes(block.bytes);
    }
  }
  return bytes;
}

}  // namespace

ResultPlaces::ResultPlaces(DeviceAllocator allocate, std::size_t places, std::size_t max_bytes)
    : allocate_(std::move(allocate)), places_(places), bytes_left_(max_bytes) {}

bool ResultPlaces::add(std::span<const MemoryBlock> result) {
  const std::size_t bytes = bytes_of_place(result, false);
  const std::size_t places =
      std::min(blocks_.empty() ? places_ : blocks_.size(), bytes_left_ / std::max(bytes, kGranule));
  if (places < 2) {
    return false;
  }
  blocks_.resize(places);
  try {
    keep(result, places);
  } catch (const std::exception&) {  // the allocator is out of memory
    return false;
  }
  bytes_left_ -= places * bytes;
  return true;
}

void ResultPlaces::keep(std::span<const MemoryBlock> result, std::size_t places) {
  if (const std::size_t large = bytes_of_place(result, true); large > 0) {
    // One free block from which the pieces are cut: separately, each would start at a large page.
    allocate_(places * large).reset();
  }
  std::vector<std::size_t> order(places);
  for (std::size_t i = 0; i < places; ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random_);
  for (const std::size_t place : order) {
    for (const MemoryBlock& block : result) {
      separators_.push_back(allocate_(separator_bytes(block.bytes)));
      blocks_[place].push_back({block.bytes, allocate_(block.bytes)});
      if (fills_a_segment(block.bytes)) {
        fill_segment_behind(blocks_[place].back());
      }
    }
  }
  separators_.push_back(allocate_(separator_bytes(result.back().bytes)));
}

/// Leave no room for the next separator, after which the next block would start a segment.
void ResultPlaces::fill_segment_behind(const Block& block) {
  const std::uintptr_t end =
      reinterpret_cast<std::uintptr_t>(block.held.get()) + rounded(block.bytes);
  const std::size_t rest = (kSmallSegment - end % kSmallSegment) % kSmallSegment;
  if (0 < rest && rest <= kSmallBytes) {
    separators_.push_back(allocate_(rest));
  }
}

/// Return a size from the same pool as the neighbor's.
std::size_t ResultPlaces::separator_bytes(std::size_t neighbor_bytes) {
  const std::size_t fewest = neighbor_bytes <= kSmallBytes ? 0 : kSmallBytes;
  const std::size_t most = max_separator_bytes(neighbor_bytes);
  return fewest + kGranule * std::uniform_int_distribution<std::size_t>(
                                 1, (most - fewest) / kGranule)(random_);
}

void ResultPlaces::open(std::size_t place) {
  opened_.clear();
  for (Block& block : blocks_of(place)) {
    opened_.push_back(reinterpret_cast<std::uintptr_t>(block.held.get()));
    block.held.reset();
  }
}

void ResultPlaces::close(std::size_t place) {
  try {
    for (Block& block : blocks_of(place)) {
      block.held = allocate_(block.bytes);
    }
  } catch (const std::exception&) {
    // Another thread took it, and no other block is free: this placement's results go anywhere.
  }
}

bool ResultPlaces::was_kept(std::uintptr_t address) const {
  return std::ranges::find(opened_, address) != opened_.end();
}

}  // namespace convtime
