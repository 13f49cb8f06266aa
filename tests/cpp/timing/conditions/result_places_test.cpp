#include "timing/conditions/result_places.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "helpers.h"
#include "timing/conditions/rotating_callable.h"

namespace convtime {
namespace {

/// Gives the smallest free block that is large enough, cut to size, as PyTorch's allocator does.
class BestFit {
 public:
  explicit BestFit(std::size_t bytes) { free_[kBase] = bytes; }

  DeviceAllocator allocator() {
    return [this](std::size_t bytes) { return allocate(bytes); };
  }

  std::shared_ptr<void> allocate(std::size_t bytes) {
    const std::size_t size = (bytes + 511) / 512 * 512;
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->second >= size && (best == free_.end() || block->second < best->second)) {
        best = block;
      }
    }
    if (best == free_.end()) {
      throw std::runtime_error("out of memory");
    }
    const auto [address, found] = *best;
    free_.erase(best);
    if (found > size) {
      free_[address + size] = found - size;
    }
    held_ += size;
    return {reinterpret_cast<void*>(address),
            [this, address, size](void*) { free(address, size); }};
  }

  std::size_t held() const { return held_; }

 private:
  static constexpr std::uintptr_t kBase = std::uintptr_t{1} << 30;

  void free(std::uintptr_t address, std::size_t size) {
    held_ -= size;
    auto block = free_.emplace(address, size).first;
    if (const auto next = std::next(block);
        next != free_.end() && block->first + block->second == next->first) {
      block->second += next->second;
      free_.erase(next);
    }
    if (block != free_.begin()) {
      const auto before = std::prev(block);
      if (before->first + before->second == block->first) {
        before->second += block->second;
        free_.erase(block);
      }
    }
  }

  std::map<std::uintptr_t, std::size_t> free_;
  std::size_t held_ = 0;
};

std::uintptr_t address_of(const std::shared_ptr<void>& block) {
  return reinterpret_cast<std::uintptr_t>(block.get());
}

class ResultPlacesTest : public testing::TestWithParam<std::size_t> {};

TEST_P(ResultPlacesTest, PutsResultsAtAnotherPlaceForEach) {
  BestFit memory(std::size_t{1} << 33);
  {
    ResultPlaces places(memory.allocator(), 64, std::size_t{1} << 33);
    const std::vector<MemoryBlock> result{{0, GetParam()}};
    ASSERT_TRUE(places.add(result));
    std::set<std::uintptr_t> addresses;
    std::set<std::uintptr_t> within_page;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t place = 0; place < 64; ++place) {
        places.open(place);
        auto block = memory.allocate(GetParam());
        EXPECT_TRUE(places.was_kept(address_of(block)));
        EXPECT_EQ(address_of(block) % 512, 0U);
        addresses.insert(address_of(block));
        within_page.insert(address_of(block) % (2 << 20));
        block.reset();
        places.close(place);
      }
    }
    EXPECT_EQ(addresses.size(), 64U) << "each place keeps its own";
    EXPECT_GT(within_page.size(), 48U);
  }
  EXPECT_EQ(memory.held(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ResultPlacesTest, testing::Values(4, 4096, 1 << 20, 12 << 20));

TEST(ResultPlaces, TakesNoMoreThanItMayAndThereIs) {
  BestFit memory(std::size_t{1} << 33);
  const std::vector<MemoryBlock> result{{0, 4096}};
  ResultPlaces places(memory.allocator(), 256, 1 << 20);
  ASSERT_TRUE(places.add(result));
  EXPECT_LE(memory.held(), std::size_t{1} << 20);
  EXPECT_FALSE(places.add(result)) << "nothing is left for another one";
  places.open(255);
  EXPECT_TRUE(places.was_kept(address_of(memory.allocate(4096))));
  EXPECT_FALSE(ResultPlaces(memory.allocator(), 256, 4096).add(result));
  BestFit small(1 << 20);
  ResultPlaces none(small.allocator(), 256, std::size_t{1} << 33);
  EXPECT_FALSE(none.add(std::vector<MemoryBlock>{{0, 1 << 16}}));
}

TEST(ResultPlaces, TakesAllBlocksFromTheResultsPool) {
  constexpr std::size_t kSmall = 1 << 20;  // the largest block of the pool for small ones
  for (const std::size_t bytes : {std::size_t{512}, kSmall, kSmall + 1}) {
    BestFit memory(std::size_t{1} << 33);
    const auto checked = [&](std::size_t asked) {
      EXPECT_EQ(asked > kSmall, bytes > kSmall) << asked << " for " << bytes;
      return memory.allocate(asked);
    };
    EXPECT_TRUE(
        ResultPlaces(checked, 64, std::size_t{1} << 33).add(std::vector<MemoryBlock>{{0, bytes}}));
  }
}

/// Takes as large a block as its result before, `scratch` of them, and drops them again.
class Operation final : public Callable {
 public:
  Operation(BestFit& memory, std::size_t scratch, std::vector<std::uintptr_t>& results)
      : memory_(memory), scratch_(scratch), results_(results) {}
  void call() override {
    std::vector<std::shared_ptr<void>> scratch;
    for (std::size_t i = 0; i < scratch_; ++i) {
      scratch.push_back(memory_.allocate(kBytes));
    }
    result_ = memory_.allocate(kBytes);
    results_.push_back(address_of(result_));
  }
  void discard_result() override { result_.reset(); }
  std::vector<MemoryBlock> result_blocks() override { return {{address_of(result_), kBytes}}; }

 private:
  static constexpr std::size_t kBytes = 4096;
  BestFit& memory_;
  std::size_t scratch_;
  std::vector<std::uintptr_t>& results_;
  std::shared_ptr<void> result_;
};

struct Timed {
  std::set<std::uintptr_t> addresses;
  std::string reason;
};

Timed time_operation(std::size_t scratch) {
  BestFit memory(std::size_t{1} << 30);
  std::vector<std::uintptr_t> results;
  std::vector<std::unique_ptr<Callable>> copies;
  for (int i = 0; i < 32; ++i) {
    copies.push_back(std::make_unique<Operation>(memory, scratch, results));
  }
  Rotation rotation;
  rotation.results = std::make_unique<ResultPlaces>(memory.allocator(), 32, std::size_t{1} << 28);
  RotatingCallable rotating(std::move(copies), std::move(rotation));
  for (int i = 0; i < 32; ++i) {
    rotating.prepare();
    rotating.call();
    rotating.discard_result();
    if (i == 0) {
      rotating.settle();
      results.clear();
    }
  }
  return {{results.begin(), results.end()}, rotating.results_reason()};
}

TEST(ResultPlaces, AreFoundByResultsOfCallsThatTakeFewOtherBlocks) {
  for (const std::size_t scratch : {0, 1, 2, 20}) {
    const Timed timed = time_operation(scratch);
    EXPECT_EQ(timed.addresses.size() > 20U, scratch < 20) << scratch;
    EXPECT_EQ(timed.reason.empty(), scratch < 20) << timed.reason;
  }
  EXPECT_TRUE(contains(time_operation(20).reason, "does not use the memory"));
}

}  // namespace
}  // namespace convtime
