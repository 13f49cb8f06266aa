#pragma once

#include <cstdint>

namespace convtime::conv {

// PyTorch's names of the graph's tensors. They are part of a plan's serialized form.
inline constexpr std::int64_t kIdX = 'x';
inline constexpr std::int64_t kIdY = 'y';
inline constexpr std::int64_t kIdW = 'w';
inline constexpr std::int64_t kIdZ = 'z';
inline constexpr std::int64_t kIdB = 'b';
inline constexpr std::int64_t kIdConvolved = 'C';
inline constexpr std::int64_t kIdAdded = 'A';
inline constexpr std::int64_t kIdBiased = 'B';

}  // namespace convtime::conv
