#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string_view>

namespace convtime {

// Files of /proc and of cgroups, which are opened once and read again and again.

/// Returns -1 if the file cannot be opened.
inline int open_text_file(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

inline void close_file(int file) {
  if (file >= 0) {
    ::close(file);
  }
}

/// Return the file's text from its beginning, truncated to the buffer; empty if it is not readable.
/// A null character follows the text.
template <std::size_t kSize>
std::string_view read_text(int file, std::array<char, kSize>& buffer) {
  const ssize_t length = file < 0 ? -1 : ::pread(file, buffer.data(), kSize - 1, 0);
  if (length <= 0) {
    return {};
  }
  buffer[static_cast<std::size_t>(length)] = '\0';
  return {buffer.data(), static_cast<std::size_t>(length)};
}

}  // namespace convtime
