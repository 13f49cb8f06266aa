#pragma once

namespace convtime {

/// Threads of a block that copies, and words of 16 bytes that each of them copies.
inline constexpr unsigned kCopyThreads = 256;
inline constexpr unsigned kCopyWords = 8;

}  // namespace convtime
