#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace convtime {

/// Return how many files one part of a probe may keep open: a quarter of those that this process
/// may open, since the program that is timed needs some, too.
inline std::size_t most_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur / 4;
}

/// A file of /proc or of a cgroup, which is opened once and read again and again.
class TextFile {
 public:
  TextFile() = default;
  explicit TextFile(const std::filesystem::path& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~TextFile() {
    if (is_open()) {
      ::close(file_);
    }
  }
  TextFile(TextFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  TextFile& operator=(TextFile&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  bool is_open() const { return file_ >= 0; }
  int descriptor() const { return file_; }

  /// Return the file's text from its beginning, truncated to the buffer; empty if it is not
  /// readable. A null character follows the text.
  template <std::size_t kSize>
  std::string_view read(std::array<char, kSize>& buffer) const {
    const ssize_t length = is_open() ? ::pread(file_, buffer.data(), kSize - 1, 0) : -1;
    if (length <= 0) {
      return {};
    }
    buffer[static_cast<std::size_t>(length)] = '\0';
    return {buffer.data(), static_cast<std::size_t>(length)};
  }

  /// Return the file's text, for which the buffer grows; empty if it is not readable. A null
  /// character follows the text.
  std::string_view read(std::string& buffer) const {
    constexpr std::size_t kFirstSize = 4096;
    buffer.resize(std::max(kFirstSize, buffer.size()));
    for (;;) {
      const ssize_t length = is_open() ? ::pread(file_, buffer.data(), buffer.size(), 0) : -1;
      if (length <= 0) {
        return {};
      }
      if (static_cast<std::size_t>(length) < buffer.size()) {
        buffer[static_cast<std::size_t>(length)] = '\0';
        return {buffer.data(), static_cast<std::size_t>(length)};
      }
      buffer.resize(2 * buffer.size());  // in one read, which is of one moment
    }
  }

 private:
  int file_ = -1;
};

}  // namespace convtime
