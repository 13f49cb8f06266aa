#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace convtime::conv {

/// Combines numbers into one hash.
class Hasher {
 public:
  void add(std::int64_t value) {
    // Mixing function of boost::hash_combine, in 64 bits.
    hash_ ^= static_cast<std::size_t>(value) + 0x9e3779b97f4a7c15ULL + (hash_ << 12) + (hash_ >> 4);
  }
  template <std::size_t N>
  void add(const std::array<std::int64_t, N>& values) {
    for (const std::int64_t value : values) {
      add(value);
    }
  }
  std::size_t hash() const { return hash_; }

 private:
  std::size_t hash_ = 0;
};

}  // namespace convtime::conv
