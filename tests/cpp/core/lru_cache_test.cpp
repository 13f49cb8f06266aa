#include "core/lru_cache.h"

#include <gtest/gtest.h>

namespace convtime {
namespace {

TEST(LruCache, DropsWhatWasNotUsedForLongest) {
  LruCache<int, char> cache(2);
  EXPECT_EQ(cache.find(1), nullptr);
  cache.insert(1, 'a');
  cache.insert(2, 'b');
  ASSERT_NE(cache.find(1), nullptr);
  EXPECT_EQ(*cache.find(1), 'a');
  cache.insert(3, 'c');
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_NE(cache.find(1), nullptr);
  EXPECT_NE(cache.find(3), nullptr);
  EXPECT_EQ(cache.size(), 2U);
}

TEST(LruCache, OfNoCapacityKeepsNothing) {
  LruCache<int, char> cache(0);
  cache.insert(1, 'a');
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(cache.size(), 0U);
}

TEST(LruCache, ReplacesAKeysValue) {
  LruCache<int, char> cache(2);
  cache.insert(1, 'a');
  cache.insert(1, 'b');
  EXPECT_EQ(*cache.find(1), 'b');
  EXPECT_EQ(cache.size(), 1U);
}

}  // namespace
}  // namespace convtime
