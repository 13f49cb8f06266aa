#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <unordered_map>
#include <utility>

namespace convtime {

/// Keeps the `capacity` most recently used values (none if `capacity` is 0). Not thread-safe.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class LruCache {
 public:
  explicit LruCache(std::size_t capacity) : capacity_(capacity) {}

  /// Return the key's value, or null. Valid until the next insert().
  Value* find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) {
      return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// Add or replace the key's value; drops the least recently used value.
  void insert(const Key& key, Value value) {
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.erase(found->second);
      index_.erase(found);
    }
    entries_.emplace_front(key, std::move(value));
    index_.emplace(key, entries_.begin());
    if (entries_.size() > capacity_) {
      index_.erase(entries_.back().first);
      entries_.pop_back();
    }
  }

  std::size_t size() const { return entries_.size(); }
  std::size_t capacity() const { return capacity_; }

 private:
  using Entry = std::pair<Key, Value>;

  std::size_t capacity_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, typename std::list<Entry>::iterator, Hash> index_;
};

}  // namespace convtime
