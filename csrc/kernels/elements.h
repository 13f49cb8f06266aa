#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/element_type.h"

// What the host needs of elements.cuh.
namespace convtime::elements {

constexpr unsigned kThreads = 128;

/// Return the type's name in device code, for name expressions.
inline std::string name_of(ElementType type) {
  switch (type) {
    case ElementType::kHalf:
      return "convtime::Half";
    case ElementType::kBFloat16:
      return "convtime::BFloat16";
    case ElementType::kFloat:
      return "float";
    case ElementType::kDouble:
      return "double";
  }
  return "";
}

constexpr std::int64_t bytes_of(ElementType type) {
  return type == ElementType::kDouble ? 8 : type == ElementType::kFloat ? 4 : 2;
}

/// Return the number of elements in 16 bytes.
constexpr int lanes_of(ElementType type) { return static_cast<int>(16 / bytes_of(type)); }

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Return the number of blocks for a loop over that many elements.
inline unsigned loop_blocks(std::int64_t count) {
  return static_cast<unsigned>(
      std::min<std::int64_t>((count + kThreads - 1) / kThreads, std::int64_t{1} << 20));
}

}  // namespace convtime::elements
